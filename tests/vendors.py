"""What packages of vendors define: `vendors.AsyncOpenAI`, `vendors.openai.NotFoundError`.

These packages take seconds to import, and every worker imports every test module. So a package is
imported when a test first asks for a name of it.
"""

from importlib import import_module

NAMES = {
    "anthropic": ["AsyncAnthropic"],
    "anthropic.types": ["Message", "MessageParam"],
    "langchain_core.language_models.chat_models": ["BaseChatModel"],
    "langchain_core.language_models.fake_chat_models": [
        "FakeListChatModel",
        "GenericFakeChatModel",
    ],
    "langchain_core.messages": ["AIMessage", "HumanMessage", "ToolMessage"],
    "langchain_core.outputs": ["ChatGeneration", "ChatResult"],
    "langchain_core.runnables": ["RunnableLambda"],
    "langchain_core.tools": ["tool"],
    "langchain_openai": ["ChatOpenAI"],
    "openai": ["AsyncOpenAI"],
    "openai._streaming": ["SSEDecoder"],
    "openai.types.responses": [
        "Response",
        "ResponseApplyPatchToolCall",
        "ResponseFunctionShellToolCall",
    ],
    "openai.types.responses.response_apply_patch_tool_call": ["OperationUpdateFile"],
    "openai.types.responses.response_output_item": ["LocalShellCall", "LocalShellCallAction"],
    "pydantic_ai": ["Agent"],
    "pydantic_ai.exceptions": ["UnexpectedModelBehavior"],
    "pydantic_ai.messages": [
        "ModelRequest",
        "ModelResponse",
        "TextPart",
        "ThinkingPart",
        "ToolCallPart",
        "ToolReturnPart",
    ],
    "pydantic_ai.models.function": ["FunctionModel"],
    "pydantic_ai.models.openai": ["OpenAIChatModel"],
    "pydantic_ai.models.test": ["TestModel"],
    "pydantic_ai.providers.openai": ["OpenAIProvider"],
    "pydantic_ai.usage": ["RequestUsage"],
}
MODULE_OF = {name: module for module, names in NAMES.items() for name in names}


def __getattr__(name):
    if name in MODULE_OF:
        return getattr(import_module(MODULE_OF[name]), name)
    if name in ("anthropic", "openai"):
        return import_module(name)
    raise AttributeError(f"{name} is not among the names of vendors.py")
