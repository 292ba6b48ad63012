import pytest
from hypothesis import given
from hypothesis import strategies as st

from etesian.data.sampler import GlobalBatchSampler
from etesian.errors import UserError


def batches(samples, batch_size, world_size=1, *, epoch=0, first=0, seed=1, shuffle=True, pad=False, limit=None):
    """Return the batches of every rank, [rank][batch][sample]."""
    result = []
    for rank in range(world_size):
        sampler = GlobalBatchSampler(samples, batch_size, rank, world_size, seed, shuffle=shuffle, pad=pad, limit=limit)
        sampler.set_epoch(epoch)
        sampler.start_at(first)
        result.append(list(sampler))
    return result


def joined(ranks):
    """Return the global batches: rank after rank."""
    return [[sample for part in slices for sample in part] for slices in zip(*ranks, strict=True)]


@given(
    samples=st.integers(1, 60), per_rank=st.integers(1, 4), world=st.sampled_from([1, 2, 3, 4]),
    seed=st.integers(0, 2**32), epoch=st.integers(0, 1000), shuffle=st.booleans(), pad=st.booleans(),
)  # fmt: skip
def test_a_global_batch_is_the_same_for_any_number_of_processes(samples, per_rank, world, seed, epoch, shuffle, pad):
    global_batch = per_rank * world
    if not pad and samples < global_batch:
        return
    options = {"seed": seed, "epoch": epoch, "shuffle": shuffle, "pad": pad}
    assert joined(batches(samples, per_rank, world, **options)) == joined(batches(samples, global_batch, **options))


@given(samples=st.integers(1, 60), batch_size=st.integers(1, 4), world=st.integers(1, 4), shuffle=st.booleans())
def test_padding_keeps_every_sample_once_and_every_batch_full(samples, batch_size, world, shuffle):
    ranks = batches(samples, batch_size, world, shuffle=shuffle, pad=True)
    flat = [sample for batch in joined(ranks) for sample in batch]
    assert sorted(sample for sample in flat if sample >= 0) == list(range(samples))
    assert all(0 <= -1 - sample < samples for sample in flat if sample < 0)
    assert {len(batch) for rank in ranks for batch in rank} == {batch_size}
    assert len({len(rank) for rank in ranks}) == 1


@given(samples=st.integers(1, 60), batch_size=st.integers(1, 5), first=st.integers(0, 5), epoch=st.integers(0, 3))
def test_starting_in_the_middle_yields_the_rest(samples, batch_size, first, epoch):
    whole = batches(samples, batch_size, epoch=epoch, pad=True)[0]
    if first <= len(whole):
        assert batches(samples, batch_size, epoch=epoch, first=first, pad=True)[0] == whole[first:]


def test_dropping_keeps_full_batches_only():
    (rank,) = batches(10, 4, pad=False)
    assert [len(batch) for batch in rank] == [4, 4]
    assert len({sample for batch in rank for sample in batch}) == 8


def test_the_order_depends_on_seed_and_epoch_alone():
    assert batches(50, 5) == batches(50, 5)
    assert batches(50, 5) != batches(50, 5, epoch=1)
    assert batches(50, 5) != batches(50, 5, seed=2)
    assert batches(5, 2, shuffle=False, pad=True) == [[[0, 1], [2, 3], [4, -1]]]


def test_a_new_epoch_starts_at_its_first_batch():
    sampler = GlobalBatchSampler(10, 2, 0, 1, 0, shuffle=True, pad=False)
    sampler.start_at(3)
    assert len(list(sampler)) == 2
    sampler.set_epoch(1)
    assert len(list(sampler)) == len(sampler) == 5


def test_a_limit_takes_the_first_batches():
    assert batches(50, 5, limit=3)[0] == batches(50, 5)[0][:3]
    assert len(GlobalBatchSampler(50, 5, 0, 1, 0, shuffle=True, pad=True, limit=3)) == 3
    assert len(GlobalBatchSampler(10, 5, 0, 1, 0, shuffle=True, pad=True, limit=3)) == 2


def test_no_full_batch_is_an_error():
    with pytest.raises(UserError, match="7 samples do not fill one batch of 4 samples x 2 processes") as error:
        GlobalBatchSampler(7, 4, 0, 2, 0, shuffle=True, pad=False)
    assert error.value.problems[0].where == "dataloader.batch_size.training"
