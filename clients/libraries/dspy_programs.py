"""DSPy."""

import dspy
from cells import FINAL, KEY, QUESTION, main, weather


def program(server, kind, **settings):
    model = dspy.LM(
        f"openai/{server.model}", api_base=server.url, api_key=KEY, cache=False, num_retries=0
    )
    with dspy.context(lm=model, **settings):
        return kind()


def predict(server):
    """fields in the prompt"""
    answer = program(server, lambda: dspy.Predict("question -> answer")(question=QUESTION))
    assert answer.answer == FINAL, answer


def form(server):
    """structured answer"""
    ask = dspy.Predict("question -> city: str, degrees: int")
    answer = program(server, lambda: ask(question=QUESTION), adapter=dspy.JSONAdapter())
    assert isinstance(answer.degrees, int), answer


def tools(server):
    """tools"""
    react = dspy.ReAct("question -> answer", tools=[weather], max_iters=3)
    answer = program(server, lambda: react(question=QUESTION))
    assert answer.answer == FINAL, answer
    assert answer.trajectory["observation_0"] == "20", answer.trajectory


main("dspy", predict, form, tools)
