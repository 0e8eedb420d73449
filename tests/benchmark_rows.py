"""Rows in the shapes of published benchmarks, by a number each."""


def conversation(text):
    return [{"content": text, "language": "English", "role": "user"}]


def rmb_answer(text):
    return {"llm_name": "a", "answer": text}


def reward_bench(n, subset="hep-go"):
    return dict(
        id=n,
        prompt=f"p{n}",
        chosen=f"good {n}",
        chosen_model="a",
        rejected=f"bad {n}",
        rejected_model="b",
        subset=subset,
    )


def reward_bench_2(
    n, subset="Focus", chosen=("good",), rejected=("bad", "worse", "worst"), id=None
):
    counts = dict(
        num_correct=len(chosen),
        num_incorrect=len(rejected),
        total_completions=len(chosen) + len(rejected),
    )
    texts = dict(chosen=[f"{t} {n}" for t in chosen], rejected=[f"{t} {n}" for t in rejected])
    return dict(
        id=id or str(n),
        prompt=f"p{n}",
        **texts,
        models=["a"],
        subset=subset,
        additional_metadata=None,
        **counts,
    )


def rmb_pair(n, goal="Helpfulness/Chat/Discussion"):
    texts = dict(chosen=rmb_answer(f"good {n}"), reject=rmb_answer(f"bad {n}"))
    return dict(
        pair_uid=str(n),
        conversation_input=conversation(f"p{n}"),
        **texts,
        category_path=f"Pairwise_set/{goal}",
    )


def rmb_best_of_n(n, goal="Harmlessness/S1"):
    texts = dict(
        bon_best=rmb_answer(f"good {n}"),
        loser_list=[rmb_answer(f"bad {n}"), rmb_answer(f"worse {n}")],
    )
    return dict(
        conversation_input=conversation(f"p{n}"),
        **texts,
        bon_uid=str(n),
        category_path=f"BoN_set/{goal}",
    )


def rm_bench(n, domain="chat"):
    styles = ("concise", "plain", "markdown")
    chosen, rejected = ([f"{word} {style} {n}" for style in styles] for word in ("good", "bad"))
    return dict(id=f"chat/{n}", prompt=f"p{n}", chosen=chosen, rejected=rejected, domain=domain)


def judge_bench(n, source="mmlu-pro-law", label="A>B"):
    texts = (f"good {n}", f"bad {n}") if label == "A>B" else (f"bad {n}", f"good {n}")
    ids = dict(pair_id=f"u{n}", original_id=n, source=source)
    return dict(
        **ids,
        question=f"p{n}",
        response_model="m",
        response_A=texts[0],
        response_B=texts[1],
        label=label,
    )


ROWS = {
    "RewardBench": reward_bench,
    "RewardBench 2": reward_bench_2,
    "RMB pairs": rmb_pair,
    "RMB best-of-n": rmb_best_of_n,
    "RM-Bench": rm_bench,
    "JudgeBench": judge_bench,
}
