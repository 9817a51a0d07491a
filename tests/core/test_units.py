"""Quantities cross the edge once, exactly, and come back as people wrote them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core import units
from scheduling.core.units import QuantityError


@pytest.mark.parametrize(
    ("written", "milli"),
    [
        (0, 0),
        (1, 1000),
        (0.5, 500),
        ("0.5", 500),
        (" 0.5 ", 500),
        (0.1, 100),
        (0.3, 300),
        ("1e0", 1000),
        (Decimal("2.050"), 2050),
        (8, 8000),
        ("0.001", 1),
        (1_000_000, 1_000_000_000),
    ],
)
def test_gpus_become_milli(written, milli):
    assert units.milli_from_gpus(written) == milli


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("half", "not a number"),
        ("", "not a number"),
        (None, "not a number"),
        (True, "not a number"),
        ([1], "not a number"),
        ("nan", "not a finite number"),
        (float("inf"), "not a finite number"),
        (-1, "negative"),
        ("-0.001", "negative"),
        ("0.0001", "finer than a thousandth"),
        (1e300, "out of range"),
        ("1e-400", "out of range"),
        ("9" * 41, "at most 40"),
        ("1_000", "not a number"),
        ("٣", "not a number"),
        ("１", "not a number"),
        (Decimal("1E+999"), "^1E\\+999 is out of range"),
        (Decimal("0.5" + "0" * 40 + "1"), "more than 28 digits"),
        ("0.5" + "0" * 30 + "1", "more than 28 digits"),
    ],
)
def test_what_is_no_quantity_is_refused(written, says):
    with pytest.raises(QuantityError, match=says):
        units.milli_from_gpus(written)


def test_three_times_a_third_shown_as_people_write_it():
    total = 3 * units.milli_from_gpus(0.3)
    assert (units.gpus_from_milli(total), units.format_gpus(total)) == (0.9, "0.9")
    assert (units.gpus_from_milli(total - 900), units.format_gpus(0)) == (0, "0")


@pytest.mark.parametrize(
    ("milli", "text"),
    [(0, "0"), (1, "0.001"), (50, "0.05"), (900, "0.9"), (1000, "1"), (2000, "2"), (10_000, "10"), (-3000, "-3")],
)
def test_milli_as_text(milli, text):
    assert units.format_gpus(milli) == text


@given(st.integers(0, 10**12))
def test_milli_come_back_from_text_and_json(milli):
    assert units.milli_from_gpus(units.format_gpus(milli)) == milli
    assert units.milli_from_gpus(units.gpus_from_milli(milli)) == milli


@pytest.mark.parametrize(
    ("milli", "step", "near"),
    [(70, 50, (50, 100)), (100, 50, (100,)), (20, 50, (50,)), (990, 50, (950, 1000)), (999, 7, (994,)), (1, 1, (1,))],
)
def test_nearest_steps(milli, step, near):
    assert units.nearest_steps(milli, step) == near


@pytest.mark.parametrize("milli", [50, 250, 950, 1000, 2000, 64_000])
def test_a_legal_fraction_is_itself(milli):
    assert units.check_fraction(milli) == milli


def test_one_whole_device_is_legal_whatever_the_step():
    assert units.check_fraction(1000, step=300) == 1000


@pytest.mark.parametrize(
    ("milli", "says", "allowed"),
    [
        (0, "more than 0", ()),
        (-50, "more than 0", ()),
        (70, "nearest are 0.05 and 0.1", ("0.05", "0.1")),
        (20, "nearest is 0.05", ("0.05",)),
        (1500, "nearest are 1 and 2", ("1", "2")),
    ],
)
def test_an_illegal_fraction_names_the_legal_ones_beside_it(milli, says, allowed):
    with pytest.raises(QuantityError, match=says) as refusal:
        units.check_fraction(milli)
    assert refusal.value.allowed == allowed


@pytest.mark.parametrize(
    ("memory", "of", "milli"),
    [
        (1, 81920, 50),
        (4096, 81920, 50),
        (4097, 81920, 100),
        (10240, 81920, 150),
        (40960, 81920, 500),
        (81920, 81920, 1000),
        (12000, 24000, 500),
        (4000, 46068, 100),
    ],
)
def test_compute_that_goes_with_a_memory_size(memory, of, milli):
    assert units.compute_for_memory(memory, of) == milli


def test_compute_never_passes_a_whole_device():
    assert units.compute_for_memory(24_000, 24_000, step=300) == 1000


@given(st.integers(1, 200_000), st.integers(1, 200_000), st.sampled_from([1, 10, 50, 100, 250]))
def test_compute_for_memory_is_the_smallest_step_with_that_share(memory, of, step):
    memory = min(memory, of)
    milli = units.compute_for_memory(memory, of, step)
    assert milli % step == 0
    assert milli * of >= memory * 1000
    assert milli == step or (milli - step) * of < memory * 1000


@pytest.mark.parametrize(
    ("milli", "of", "memory"), [(1000, 24_576, 24_576), (250, 81_920, 20_480), (50, 24_001, 1200), (500, 1, 0)]
)
def test_memory_that_goes_with_a_fraction(milli, of, memory):
    assert units.memory_for_compute(milli, of) == memory


@given(st.integers(1, 100_000), st.lists(st.integers(1, 20), min_size=1))
def test_slices_of_a_device_never_add_up_to_more_than_its_memory(of, steps):
    slices = [50 * step for step in steps]
    while sum(slices) > 1000:
        slices.pop()
    assert sum(units.memory_for_compute(milli, of) for milli in slices) <= of


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("3d", 259_200),
        ("1w", 604_800),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("250ms", Decimal("0.25")),
        (" 5s ", 5),
        (0, 0),
        ("0s", 0),
        (12, 12),
        (0.1, Decimal("0.1")),
        ("12", 12),
    ],
)
def test_durations(written, seconds):
    assert units.seconds_from_duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "soon", "5 s", "s", "5x", "5s!", "٣s", "1_0s", "1h-5m", "-5s", -1, None, True, "nan"]
)
def test_what_is_no_duration_is_refused(written):
    with pytest.raises(QuantityError, match="duration"):
        units.seconds_from_duration(written)
