"""A leaderboard of models on llama.cpp's own server."""

from redraft.comparison import leaderboard
from redraft.models import Chat

TASKS = [{"id": str(n), "prompt": f"Say {n} words."} for n in range(4)]


async def test_variants_of_a_real_model(real, tmp_path):
    """Each answers each task once; longer answers score higher, and a second start takes no
    call.
    """
    model = Chat(real.name, real.url, key=real.key)
    variants = [
        {"model": model, "label": f"{size} tokens", "model_params": {"max_tokens": size}}
        for size in (2, 10, 80)
    ]

    def length(text: str) -> float:
        return min(1.0, len(text) / 200)

    settings = {"graders": length, "journal": tmp_path / "j.journal"}
    board = await leaderboard(variants, TASKS, **settings)
    assert [entry.name for entry in board.entries] == ["80 tokens", "10 tokens", "2 tokens"]
    assert [entry.rows for entry in board.entries] == [4, 4, 4]
    assert board.usage.calls - board.usage.cached_calls == 12
    again = await leaderboard(variants, TASKS, **settings)
    assert again.entries == board.entries
    assert again.usage.calls == again.usage.cached_calls
