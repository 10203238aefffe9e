"""Random numbers depend on where they are used, and on nothing else."""

import itertools

from finite.data.streams import AUGMENT, FILLER, ORDER, SPLIT, stream


def test_the_same_place_gives_the_same_numbers_whatever_was_drawn_before():
    first = stream(7, AUGMENT, 3, 11).random(8)
    stream(7, AUGMENT, 3, 12).random(1000)
    assert (stream(7, AUGMENT, 3, 11).random(8) == first).all()


def test_no_two_places_share_a_number():
    places = itertools.product((0, 1, -1, 2**63), (SPLIT, ORDER, FILLER, AUGMENT), (0, 1, 5), (0, 1, 5))
    numbers = [number for place in places for number in stream(*place).random(8).tolist()]
    assert len(set(numbers)) == len(numbers)


def test_the_numbers_are_those_of_every_release():
    # A changed value would silently change every run: resumed ones most of all.
    assert stream(1, ORDER, 2).permutation(8).tolist() == [2, 1, 7, 0, 3, 6, 5, 4]
