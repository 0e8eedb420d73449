"""From what a user names to a panel and a cast: which grader sits where, which model each asks, through what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .core.records import Task
from .core.trace import Seat
from .editor import FormEditor
from .errors import ConfigError, StoreError
from .graders import Judge, Pairwise, RequirementGrader, Rubric, as_grader, must
from .graders.fingerprint import fingerprint
from .graders.inputs import check_needs
from .graders.seating import as_seated
from .middleware import EndpointCapabilities, Limiter, Purse, adapt, cache, limit, meter, priced, retry, timeout
from .middleware.budget import Costs
from .middleware.tools import offer_own_tools, refuse_stray_calls
from .models import connect
from .models.endpoint_url import endpoint_shown
from .models.pricing import Price, price_of
from .options import Options
from .perform import Cast, Line, Sampling
from .protocols import Call, Editor, Model
from .quality.lineage import noisy_among
from .quality.priors import Priors
from .reservations import Experience
from .storage.priors_store import Pair, Shelf

MOST_CASTS = 1000  # that are kept: a data set may have demands of its own in every row


@dataclass
class Desk:
    """Where a run is arranged: one purse and one limit for all its models, one stack of wrappers for each of them.

    `writer` is the model that writes (None: there is none), `judge` the one that graders ask (None: the writer). `hold`
    puts a limit of another kind around the calls of a model.
    """

    options: Options
    writer: Any = None
    graders: Any = None
    judge: Any = None
    hold: Callable[[Call, Model], Call] | None = None
    purse: Purse = field(init=False)
    capabilities: EndpointCapabilities = field(default_factory=EndpointCapabilities, init=False)
    _limiter: Limiter = field(init=False)
    _lines: dict[int, tuple[Any, Line]] = field(default_factory=dict)
    casts: dict[tuple[str, ...], tuple[tuple[Seat, ...], Cast]] = field(default_factory=dict)
    _owned: list[Any] = field(default_factory=list)
    believed: Priors | None = field(default=None, init=False)
    experience: Experience = field(default_factory=Experience, init=False)

    def __post_init__(self) -> None:
        self.purse = Purse(self.options.budget)
        self._limiter = Limiter(self.options.max_in_flight)

    def seat(self, requirements: tuple[str, ...]) -> tuple[tuple[Seat, ...], Cast]:
        """The panel and the cast for tasks with these requirements; made once. Raises ConfigError."""
        if requirements not in self.casts:
            seats = seat_all(requirements, self.graders, has_model=self.writer is not None or self.judge is not None)
            seats += final_check(seats) if self.options.final_check else []
            cast = cast_for(self, seats)
            panel = tuple(seat if cast.editor else replace(seat, editable=False) for seat, _ in seats)
            while len(self.casts) >= MOST_CASTS:
                del self.casts[next(iter(self.casts))]
            self.casts[requirements] = self._vouched(panel, cast), cast
        return self.casts[requirements]

    def common(self) -> tuple[tuple[Seat, ...], Cast]:
        """The panel and the cast of all tasks, before their own requirements: empty where only those are to grade."""
        if self.graders is None and self.writer is None and self.judge is None:
            return (), cast_for(self, [])
        return self.seat(())

    def _vouched(self, panel: tuple[Seat, ...], cast: Cast) -> tuple[Seat, ...]:
        """The panel with what cards say of it, where that was asked for. Raises ConfigError for a grader not to be trusted."""
        if self.options.trust is None:
            return panel
        from .validation.card import Shelf
        from .validation.trust import gate, standings

        found = standings(panel, cast.graders, partial(self.fingerprint, cast), Shelf.at(self.options.cards))
        return gate(panel, found, self.options.trust)

    @property
    def priors(self) -> Priors:
        """What is believed of the model and the graders before anything is seen; looked up once.

        What cannot be read is as if it were not there.
        """
        if self.believed is None:
            self.believed = self._looked_up()
        return self.believed

    def _looked_up(self) -> Priors:
        given = self.options.priors
        if isinstance(given, Priors):
            return given
        if given == "learned" and noisy_among(self._seated()[0]):
            with suppress(StoreError, OSError):
                shelf = Shelf.at()
                if shelf.folder.is_dir() and (pair := self.pair) and (kept := shelf.of(pair)):
                    return kept.priors
        return Priors()

    @property
    def pair(self) -> Pair | None:
        """Whose priors are kept, and found again: those of the writer and of the graders that make the score.

        None where nothing is to be learned, since no model writes or none grades, and where a grader cannot be told so that it
        is known again.
        """
        panel, cast = self._seated()
        if cast.writer is None or not noisy_among(panel):
            return None
        seats = scored_by(panel)
        whole = sum(seat.weight for seat in seats)
        told, again = ([self.fingerprint(cast, seat.grader) for seat in seats] for _ in range(2))
        if told != again:
            return None
        graders = [(seat.grader, seat.weight / whole, told[i]) for i, seat in enumerate(seats)]
        return Pair.of(cast.writer.name, cast.writer.identity, graders)

    def _seated(self) -> tuple[tuple[Seat, ...], Cast]:
        """A panel and its cast: any will do, where requirements make no difference."""
        return next(iter(self.casts.values()), None) or self.common()

    def fingerprint(self, cast: Cast, seat: str) -> str:
        """The fingerprint of a seated grader, with the models that answer it."""
        line = cast.judges.get(seat)

        def identity_of(model: Any) -> str | None:
            return (line.identity if line else None) if model is None else self.line(model).identity

        return fingerprint(cast.graders[seat], identity_of)

    def with_graders(self, graders: Any) -> Desk:
        """A desk for other graders, with the same purse, limit and models."""
        other = copy(self)
        other.graders, other.casts, other.believed = graders, {}, None
        return other

    def line(self, model: Any) -> Line:
        """The way to call a model: its own call within timeout, limit, meter, adaptation, retry and cache."""
        if id(model) not in self._lines:
            connected = connect(model)
            if connected is not model:
                self._owned.append(connected)
            self._lines[id(model)] = (model, self._wrap(connected))
        return self._lines[id(model)][1]

    def _wrap(self, model: Model) -> Line:
        options = self.options
        price = self._price(model)
        where = whereabouts(model)
        call = model.complete if _keeps(model, options.timeout) else timeout(model.complete, options.timeout, where)
        call = refuse_stray_calls(call, where, decides=not hasattr(model, "tools"))
        call = priced(call, price)
        call = self.hold(call, model) if self.hold else limit(call, self._limiter)
        costs = Costs(price) if options.budget else None
        if costs:
            call = meter(call, self.purse, price, costs)
        call = adapt(call, self.capabilities.of(model.identity, model.name), getattr(model, "formats", ("text",)))
        call = retry(call, attempts=options.retries + 1)
        if options.cache is not None:
            call = cache(call, options.cache, model.identity)
        call = offer_own_tools(call, getattr(model, "tools", ()), getattr(model, "tool_choice", None))
        return Line(model.name, call, model.identity, price, costs, where)

    def _price(self, model: Model) -> Price | None:
        given = (self.options.prices or {}).get(model.name)
        price = Price(*given) if given else price_of(model)
        if price is None and (wanted := self._in_usd()):
            raise ConfigError(
                f"{wanted}, the price of {model.name!r} is unknown; "
                f"give it as prices={{{model.name!r}: (USD per million input tokens, USD per million output tokens)}}, "
                f"or --price {model.name}=IN,OUT"
            )
        return price

    def _in_usd(self) -> str:
        """What takes a price, as a complaint begins; "" where nothing does."""
        options = self.options
        if options.budget and options.budget.usd is not None:
            return "budget: usd cannot be kept"
        weighs = options.gain_per == "usd" and options.adaptive is not False and options.plan is None
        return "gain_per: 'usd' cannot be weighed" if weighs else ""

    async def close(self) -> None:
        """Close the models that were made here."""
        async with AsyncExitStack() as closing:
            for model in self._owned:
                if closes := getattr(model, "aclose", None):
                    closing.push_async_callback(closes)


def whereabouts(model: Model) -> str:
    """Where a model is asked, in words: its address, where it has one, and its name."""
    address = getattr(model, "base_url", None)
    return f"{endpoint_shown(str(address))} (model {model.name})" if address else f"model {model.name}"


def _keeps(model: Model, seconds: float | None) -> bool:
    """Whether a model itself ends every call within so many seconds."""
    own = getattr(model, "timeouts", None)
    return seconds is None or (own is not None and own.total <= seconds)


def seat_all(requirements: Sequence[str], graders: Any, *, has_model: bool) -> list[tuple[Seat, Any]]:
    """The seats in order: a task's requirements as musts, then the graders. Raises ConfigError when nobody can grade."""
    given = _listed(graders) if graders is not None else [Judge()] if has_model else []
    chosen = [*(must(spec) for spec in dict.fromkeys(requirements)), *map(as_seated, given)]
    if not chosen:
        raise ConfigError(
            "there is nothing to grade with: give `graders` or requirements"
            if has_model
            else "there is no model, and without one only requirements or functions can grade: give some, or a model"
        )
    seats: list[tuple[Seat, Any]] = []
    for seated in chosen:
        grader = as_grader(seated.grader)
        taken = [seat.grader for seat, _ in seats]
        name = getattr(grader, "name", type(grader).__name__)
        if isinstance(grader, RequirementGrader) and name in taken:
            continue  # the same demand, made twice
        seats.append((_seat(_fresh(name, taken), grader, seated), grader))
    return seats


def final_check(seats: Sequence[tuple[Seat, Any]]) -> list[tuple[Seat, Any]]:
    """The first judge once more, by the same rubric, to compare the two best; nobody where there is none, or somebody compares."""
    judge = next((grader for seat, grader in seats if not (seat.free or seat.compares)), None)
    if judge is None or any(seat.compares for seat, _ in seats):
        return []
    held = getattr(judge, "rubric", None)
    rubric = held if isinstance(held, Rubric) and held.template is None else None
    name = _fresh("final_check", [seat.grader for seat, _ in seats])
    return [(Seat(name, compares=True), Pairwise(name, model=getattr(judge, "model", None), rubric=rubric))]


def _listed(graders: Any) -> Iterable[Any]:
    return graders if isinstance(graders, list | tuple) else [graders]


def _fresh(name: str, taken: list[str]) -> str:
    n, fresh = 1, name
    while fresh in taken:
        n += 1
        fresh = f"{name}#{n}"
    return fresh


def _seat(name: str, grader: Any, seated: Any) -> Seat:
    return Seat(
        name,
        float(seated.weight),
        seated.must,
        free=bool(getattr(grader, "free", False)),
        editable=bool(getattr(grader, "editable", False)),
        compares=not hasattr(grader, "grade"),
        looks=seated.looks,
        demand=grader.demand if seated.must and isinstance(grader, RequirementGrader) else "",
        may_ask=_may_ask(grader),
        reads_tool_calls=_reads_tool_calls(grader),
    )


def _may_ask(grader: Any) -> bool:
    """Whether only its grades show if a grader asks a model; of what is made of graders, if no part is sure to."""
    if parts := getattr(grader, "parts", ()):
        return any(map(_may_ask, parts)) and all(getattr(part, "free", False) or _may_ask(part) for part in parts)
    return bool(getattr(grader, "may_ask", False))


def _reads_tool_calls(grader: Any) -> bool:
    """Whether a grader, or a part of it, says that it grades candidates that call tools."""
    return getattr(grader, "reads_tool_calls", False) is True or any(map(_reads_tool_calls, getattr(grader, "parts", ())))


def cast_for(desk: Desk, seats: list[tuple[Seat, Any]]) -> Cast:
    """Who plays which part. A grader with a `model` of its own asks that; else the judge; else the writer."""
    options = desk.options
    writing = _named_line(desk, "model", desk.writer) if desk.writer is not None else None
    judging = _named_line(desk, "judge", desk.judge) if desk.judge is not None else writing
    lines = {seat.grader: _line_of(desk, grader, judging, free=seat.free) for seat, grader in seats}
    requirements = [g.requirement for _, g in seats if isinstance(g, RequirementGrader)]
    sampling = Sampling(options.temperature, options.max_tokens, options.seed)
    return Cast(writing, {s.grader: g for s, g in seats}, lines, _editor(options), requirements, sampling, desk.line)


def _named_line(desk: Desk, argument: str, model: Any) -> Line:
    """The line of a model that was given as an argument. Raises ConfigError naming that."""
    try:
        return desk.line(model)
    except ConfigError as error:
        raise ConfigError(f"{argument}: {error}") from None


def _line_of(desk: Desk, grader: Any, judging: Line | None, *, free: bool) -> Line | None:
    """The line of a grader, once it is sure that each of its parts has one. Raises ConfigError."""
    own = getattr(grader, "model", None)
    line = desk.line(own) if own is not None else judging
    parts = getattr(grader, "parts", ())
    for part in parts:
        _line_of(desk, part, line, free=bool(getattr(part, "free", False)))
    if line is None and not free and not parts:
        raise ConfigError(f"grader {getattr(grader, 'name', grader)!r} asks a model and none was found: give `model` or `judge`")
    return line


def scored_by(panel: Iterable[Seat]) -> list[Seat]:
    """The graders that make the score of a task, whatever its own requirements: those that ask a model, where all are musts."""
    scoring = [seat for seat in panel if not seat.compares]
    return [seat for seat in scoring if not seat.must] or [seat for seat in scoring if not seat.free]


def check_task(grader: Any, task: Task) -> None:
    """Raises ConfigError for a task that a grader, or a part of it, cannot grade."""
    if needs := getattr(grader, "needs", ()):
        check_needs(grader.name, needs, task)
    if checks := getattr(grader, "check_task", None):
        checks(task)
    for part in getattr(grader, "parts", ()):
        check_task(part, task)


def _editor(options: Options) -> Editor | None:
    if isinstance(options.editor, bool):
        return FormEditor() if options.editor else None
    return options.editor
