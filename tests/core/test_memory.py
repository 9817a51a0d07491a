"""What is remembered of the past: exact powers of a half, sums that fade together, and weights that count less."""

import random
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.halving import EXPONENT_BITS, ONE, power_of_half
from scheduling.core.memory import HORIZON, Memory, remembered, step

HOUR = 3_600_000_000
NOW = 1_767_571_200_000_000  # a Monday's midnight: a whole number of hours since the epoch


def true_power(exponent: Fraction) -> Decimal:
    with localcontext() as context:
        context.prec = 60
        return Decimal(2) ** (-Decimal(exponent.numerator) / Decimal(exponent.denominator))


@settings(max_examples=2000, deadline=None)
@given(st.one_of(st.integers(0, 2 << EXPONENT_BITS), st.integers(0, 70 << EXPONENT_BITS)))
def test_powers_of_a_half_are_within_eight_units_below_the_true_value(exponent):
    with localcontext() as context:
        context.prec = 60
        error = true_power(Fraction(exponent, 1 << EXPONENT_BITS)) * ONE - power_of_half(exponent)
    assert 0 <= error <= 8


def test_whole_exponents_are_exact():
    assert [power_of_half(x << EXPONENT_BITS) for x in (0, 1, 2, 60, 61, 10**30)] == [ONE, ONE >> 1, ONE >> 2, 1, 0, 0]


def test_known_roots():
    # 2^-60 units of 2^(-1/2) = 0.70710678118654752440…
    assert power_of_half(1 << (EXPONENT_BITS - 1)) == pytest.approx(0.7071067811865475244 * ONE, abs=200)


# ---- weights ---------------------------------------------------------------------------------------------------------

FULL = 1 << 40


@pytest.mark.parametrize(
    ("weights", "used", "want"),
    [
        # U/S = 1/(1/2) = 2 and 0: a quarter against one.
        ([1, 1], [100, 0], [FULL // 4, FULL]),
        # nobody used anything: as they were
        ([3, 5], [0, 0], [3, 5]),
        # both used their part: 1 and 1, which is 0 and 0 once the smaller is taken off both
        ([1, 1], [70, 70], [FULL, FULL]),
        # weights 1 and 3, used 1 : 3: again what each deserved
        ([1, 3], [10, 30], [FULL, 3 * FULL]),
        # used 2 : 1 : 0 of three: 2, 1, 0
        ([1, 1, 1], [200, 100, 0], [FULL // 4, FULL // 2, FULL]),
        # weight 0 stays 0, and what it used is a part of what they all used: 1/2 and 0 of S = 1/2 each
        ([0, 1, 1], [100, 100, 0], [0, FULL // 2, FULL]),
        # everything by the one of weight 1 in 10^9: far below one part in 2^40, yet not nothing
        ([1, 10**9 - 1], [5, 0], [1, (10**9 - 1) * FULL]),
        # huge amounts are no different
        ([1, 1], [10**30, 0], [FULL // 4, FULL]),
    ],
)
def test_weights_by_hand(weights, used, want):
    assert remembered(weights, used, [True] * len(weights)) == want


def test_only_those_that_rise_set_the_measure():
    # The third used nothing and wants nothing: the others' ratio is not lost in its shadow. 3/2·3 = 4.5 and 1.5.
    assert remembered([1, 1, 1], [75, 25, 0], [True, True, False]) == [
        FULL * power_of_half((3 << EXPONENT_BITS) // 2) // ONE,
        FULL,
        0,
    ]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**12)), min_size=1, max_size=8),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
)
def test_the_scale_of_use_and_of_weights_changes_no_ratio(pairs, more_use, more_weight):
    weights, used = [w for w, _ in pairs], [u for _, u in pairs]
    rises = [True] * len(pairs)
    plain = remembered(weights, used, rises)
    assert remembered(weights, [u * more_use for u in used], rises) == plain
    heavier = remembered([w * more_weight for w in weights], used, rises)
    assert all(abs(h - more_weight * p) <= more_weight for h, p in zip(heavier, plain, strict=True))


# ---- what was used ---------------------------------------------------------------------------------------------------


def test_one_gpu_for_one_half_life_comes_to_half_of_what_it_ever_can():
    """The integral of 2^(-age/h) from 0 to h is h/(2 ln 2): 1000 milli · 3600 s · 0.72134752 = 2,596,851."""
    memory = Memory(HOUR)
    memory.begin(1, 1000, NOW - HOUR)
    assert memory.used(NOW, {1: 1000}) == {1: 2_596_851}


def test_it_fades_by_half_in_each_half_life():
    memory = Memory(HOUR)
    memory.begin(1, 1000, NOW - HOUR)
    memory.end(1, 1000, NOW)
    assert [memory.used(NOW + n * HOUR, {})[1] for n in range(4)] == [2_596_851, 1_298_425, 649_212, 324_606]


def test_old_use_of_nobody_else_is_forgotten_at_the_horizon():
    memory = Memory(HOUR)
    memory.begin(1, 10**9, NOW - HOUR)
    memory.end(1, 10**9, NOW)
    assert memory.used(NOW + (HORIZON - 1) * HOUR, {})
    assert memory.used(NOW + (HORIZON + 1) * HOUR, {}) == {}


def test_what_began_before_the_horizon_and_still_runs_counts():
    memory = Memory(HOUR)
    memory.begin(1, 1000, NOW - 100 * HOUR)
    assert memory.used(NOW, {1: 1000})[1] == 5_193_702  # 1000 · 3600 / ln 2: all it ever can


spans = st.lists(
    st.tuples(
        st.integers(1, 3),  # team
        st.integers(1, 10**6),  # milli
        st.integers(0, 40 * HOUR),  # began so long ago
        st.integers(0, 40 * HOUR),  # and lasted so long, or still does
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(spans, st.integers(1, 10 * HOUR), st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_how_they_were_come_by(rows, half_life, shuffled):
    """Kept and added to in order; made anew in any order; stored in the middle, forgotten and restored: the same."""

    def enter(memory, chosen):
        held: dict[int, int] = {}
        for team, milli, ago, lasted in chosen:
            memory.begin(team, milli, NOW - ago)
            if lasted < ago:
                memory.end(team, milli, NOW - ago + lasted)
            else:
                held[team] = held.get(team, 0) + milli
        return held

    kept = Memory(half_life)
    held = enter(kept, rows)
    want = kept.used(NOW, held)
    anew = Memory(half_life)
    others = list(rows)
    shuffled.shuffle(others)
    enter(anew, others)
    assert anew.used(NOW, held) == want
    first, second = Memory(half_life), Memory(half_life)
    enter(first, rows[: len(rows) // 2])
    first.forget(NOW)
    second.restore(first.rows())
    enter(second, rows[len(rows) // 2 :])
    assert second.used(NOW, held) == want
    assert first.used(NOW, held, _only(half_life, rows[len(rows) // 2 :], enter)) == want


def _only(half_life, rows, enter):
    memory = Memory(half_life)
    enter(memory, rows)
    return memory


@settings(max_examples=200, deadline=None)
@given(spans)
def test_agrees_with_the_integral(rows):
    memory = Memory(HOUR)
    held: dict[int, int] = {}
    want: dict[int, float] = {}
    for team, milli, ago, lasted in rows:
        memory.begin(team, milli, NOW - ago)
        until = max(0, ago - lasted)
        if until:
            memory.end(team, milli, NOW - until)
        else:
            held[team] = held.get(team, 0) + milli
        # milli · (2^(-until/h) − 2^(-ago/h)) · h/ln 2
        part = 2 ** (-until / HOUR) - 2 ** (-ago / HOUR)
        want[team] = want.get(team, 0) + milli * part * 3600 / 0.6931471805599453
    got = memory.used(NOW, held)
    for team, amount in want.items():
        assert got.get(team, 0) == pytest.approx(amount, rel=1e-6, abs=2)


def test_a_short_half_life_makes_nobody_decide_all_the_time():
    assert step(60_000_000) == 30_000_000
    assert step(32 * HOUR) == HOUR


def test_many_small_terms_lose_nothing():
    rows = random.Random(5)
    one, many = Memory(HOUR), Memory(HOUR)
    at = NOW - 5 * HOUR
    one.begin(1, 700, at)
    while at < NOW:
        until = min(NOW, at + rows.randint(1, HOUR // 10))
        many.begin(1, 700, at)
        many.end(1, 700, until)
        at = until
    one.end(1, 700, NOW)
    assert many.used(NOW, {}) == one.used(NOW, {})
