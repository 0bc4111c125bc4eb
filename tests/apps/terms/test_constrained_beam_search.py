"""The search with phrases that must occur, on languages of a few words, against searches that leave nothing out."""

import random
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_vanilla_transformer.apps.terms.constrained_beam_search import ConstrainedBeamSearch, PhraseStates
from tests.generation.test_beam_search import EOS, LIMIT, WORDS, Language, assert_same, everything, penalty_of, search


START = 9  # A token that the languages do not have.
# Sentences' phrases, each with its alternatives.
PHRASES = {
    "none": [],
    "a word": [[[1]]],
    "a phrase": [[[1, 2]]],
    "two words": [[[1]], [[2]]],
    "one prefix": [[[1, 2]], [[1, 3]]],
    "one inside another": [[[1, 2, 3]], [[2]]],
    "the end of another": [[[3]], [[1, 2, 3]]],
    "overlapping": [[[1, 2]], [[2, 1]]],
    "overlapping itself": [[[1, 1]]],
    "a repeated word": [[[1]], [[1]], [[1]]],
    "a repeated phrase that overlaps itself": [[[1, 1]], [[1, 1]]],
    "a phrase that begins again": [[[1, 1, 2]]],
    "alternatives": [[[1, 2], [3]]],
    "alternatives that begin alike": [[[1, 2], [1, 3, 3]]],
    "repeated alternatives": [[[1, 2], [3]], [[3], [1, 2]]],
    "alternatives inside others": [[[1], [2]], [[3, 1], [2, 2]]],
}


# Words that begin with a letter, and that end with one.
BEGIN, END = {1, 3}, {1, 2}


def is_whole(words, start, end, silent=None):
    parts = [[word for word in part if word != silent] for part in (words[:start], words[start:end], words[end:])]
    edges = [before[-1:] + after[:1] for before, after in pairwise(parts)]
    return not any(len(pair) == 2 and pair[0] in END and pair[1] in BEGIN for pair in edges)


def positions(words, phrase, whole=False, silent=None):
    """The positions after which one of a phrase's alternatives has just been said."""
    return {
        end
        for end in range(len(words) + 1)
        for alternative in phrase
        if list(words[max(0, end - len(alternative)) : end]) == alternative
        and (not whole or is_whole(words, end - len(alternative), end, silent))
    }


def has_all(words, phrases, whole=False, silent=None):
    """Whether each phrase is said, and as often as it is given."""
    return all(
        len(positions(words, phrase, whole, silent)) >= sum(sorted(required) == sorted(phrase) for required in phrases)
        for phrase in phrases
    )


def with_phrases(phrases, prompts=None, whole=False, silent=None):
    """What `search` calls in the place of `BeamSearch`."""
    frozen = [[tuple(map(tuple, phrase)) for phrase in of_sentence] for of_sentence in phrases]
    edges = [[whole and word in edge and word != silent for word in range(START + 1)] for edge in (BEGIN, END)]
    letter_edges = torch.tensor([*edges, [word == silent for word in range(START + 1)]])

    def build(num_beams, *, num_eos, **options):
        assert num_eos == 1
        prompt_tokens = torch.full((len(phrases), 1), START) if prompts is None else torch.tensor(prompts)
        options.update(phrases=frozen, letter_edges=letter_edges, prompts=prompt_tokens)
        return ConstrainedBeamSearch(num_beams, eos=torch.tensor([EOS]), **options)

    return build


def exhaustive(language, limit, penalty, phrases, whole=False, silent=None):
    return [pair for pair in everything(language, limit, penalty) if has_all(pair[1], phrases, whole, silent)]


@pytest.mark.parametrize(("alpha", "whole"), [(-0.5, False), (0.6, False), (3.0, False), (0.6, True)])
@pytest.mark.parametrize("case", PHRASES)
def test_a_wide_beam_finds_what_an_exhaustive_search_finds(case, alpha, whole):
    phrases, penalty = PHRASES[case], penalty_of("gnmt", alpha)
    expected = [
        exhaustive(Language(seed), limit, penalty, needed, whole)
        for seed, (limit, needed) in enumerate([(LIMIT, phrases), (3, [[[1]]])])
    ]
    languages = [Language(0), Language(1)]
    make_search = with_phrases([phrases, [[[1]]]], whole=whole)
    hypotheses, _ = search(
        languages, 3**LIMIT, [LIMIT, 3], penalty, alpha=alpha, num_results=20, search_class=make_search
    )
    for hypotheses_of_sentence, expected_of_sentence in zip(hypotheses, expected, strict=True):
        count = min(20, len(expected_of_sentence))
        assert count or (whole and "repeated" in case)
        assert_same(hypotheses_of_sentence[:count], expected_of_sentence[:count])
        assert all(score < -1e8 for score, _ in hypotheses_of_sentence[count:])


@pytest.mark.parametrize("case", [case for case, phrases in PHRASES.items() if phrases and "3" not in str(phrases)])
def test_a_word_without_text_does_not_part_others(case):
    """As special tokens, which decoding removes: what was said before and after them is one word then."""
    penalty, options = penalty_of("gnmt", 0.6), {"whole": True, "silent": 3}
    expected = exhaustive(Language(0), LIMIT, penalty, PHRASES[case], **options)
    make_search = with_phrases([PHRASES[case]], **options)
    (best,), _ = search([Language(0)], 3**LIMIT, [LIMIT], penalty, num_results=20, search_class=make_search)
    count = min(20, len(expected))
    assert_same(best[:count], expected[:count])
    assert all(score < -1e8 for score, _ in best[count:])


def random_phrases(draws, most=3, longest=3):
    def draw_alternative():
        return [draws.randrange(1, WORDS) for _ in range(draws.randint(1, longest))]

    return [[draw_alternative() for _ in range(draws.randint(1, 2))] for _ in range(draws.randint(0, most))]


def tokens_of(phrases, whole=False):
    """Of alternatives that may follow any word."""
    return sum(
        min(len(alternative) for alternative in phrase if not (whole and alternative[0] in BEGIN)) for phrase in phrases
    )


@pytest.mark.parametrize("num_beams", [2, 3, 5])
@pytest.mark.parametrize(("num_return_sequences", "whole"), [(1, False), (2, False), (1, True)])
def test_a_narrow_beam_says_every_phrase(num_beams, num_return_sequences, whole):
    """Also where there is just enough room for them, and more banks than beams."""
    draws = random.Random(num_beams)
    phrases = [random_phrases(draws) for _ in range(60)]
    languages = [Language(seed, ending=2.0) for seed in range(60)]
    if whole:
        phrases = [[[*phrase, [2, *phrase[0]]] for phrase in phrases_of_sentence] for phrases_of_sentence in phrases]
    limits = [tokens_of(phrases_of_sentence, whole) + 1 + seed % 4 for seed, phrases_of_sentence in enumerate(phrases)]
    make_search = with_phrases(phrases, whole=whole)
    hypotheses, _ = search(
        languages,
        num_beams,
        limits,
        penalty_of("gnmt", 0.6),
        num_results=num_return_sequences,
        search_class=make_search,
    )
    free, _ = search(languages, num_beams, limits, penalty_of("gnmt", 0.6))
    assert sum(not has_all(words, needed) for ((_, words),), needed in zip(free, phrases, strict=True)) > 30
    for (best, *other_hypotheses), needed in zip(hypotheses, phrases, strict=True):
        assert has_all(best[1], needed, whole)
        assert all(score < -1e8 or has_all(words, needed, whole) for score, words in other_hypotheses)


@pytest.mark.parametrize("leaves", [False, True])
def test_each_sentence_is_searched_as_if_it_were_alone(leaves):
    """One without phrases as without this search."""
    penalty, draws = penalty_of("gnmt", 0.6), random.Random(3)
    languages = [Language(seed, ending=seed % 3 - 1.0) for seed in range(24)]
    phrases = [random_phrases(draws) if seed % 3 else [] for seed in range(24)]
    limits = [tokens_of(phrases_of_sentence) + 1 + seed % 5 for seed, phrases_of_sentence in enumerate(phrases)]
    together, _ = search(
        languages, 3, limits, penalty, num_results=2, search_class=with_phrases(phrases), leaves=leaves
    )
    for language, limit, needed, hypotheses in zip(languages, limits, phrases, together, strict=True):
        options = {"search_class": with_phrases([needed])} if needed else {}
        (alone,), _ = search([language], 3, [limit], penalty, num_results=2, **options)
        assert_same(hypotheses, alone)


def test_a_narrow_beam_is_near_the_exhaustive_search():
    penalty, phrases, exact = penalty_of("gnmt", 0.6), [[[1, 2]], [[3]]], 0
    for seed in range(20):
        best, *_ = exhaustive(Language(seed), LIMIT, penalty, phrases)
        (((score, words),),), _ = search([Language(seed)], 5, [LIMIT], penalty, search_class=with_phrases([phrases]))
        assert score <= best[0] + 1e-5
        exact += words == best[1]
    assert exact >= 12


def test_a_prefix_counts():
    penalty = penalty_of("gnmt", 0.6)
    phrases = [[[1, 2]], [[3, 1], [3, 3]]]
    prompts = [[START, 1, 2, 1], [START, 2, 1, 3], [START, 3, 1, 2], [START, 1, 3, 1]]
    languages = [Language(4)] * 4
    hypotheses, _ = search(languages, 3**LIMIT, [LIMIT] * 4, penalty, search_class=with_phrases([phrases] * 4, prompts))
    for prompt, [best] in zip(prompts, hypotheses, strict=True):
        expected = [pair for pair in everything(languages[0], LIMIT, penalty) if has_all((*prompt, *pair[1]), phrases)]
        assert_same([best], expected[:1])


def test_phrases_that_exceed_the_limit_of_a_sentence():
    penalty = penalty_of("gnmt", 0.6)
    make_search = with_phrases([[], [[[1, 2]], [[2, 3, 1]]]])
    search([Language(0)] * 2, 4, [1, 6], penalty, search_class=make_search)
    with pytest.raises(ValueError, match=r"sentence 1 .* 6 tokens.* limit is 5"):
        search([Language(0)] * 2, 4, [1, 5], penalty, search_class=make_search)


@pytest.mark.parametrize("seed", range(20))
def test_needed_after_tokens_equals_needed_of_followed_states(seed):
    draws = random.Random(seed)
    vocabulary, num_hypotheses = 12, 6
    phrases = [_random_alternatives(draws, vocabulary - 2) for _ in range(3)]
    edges = torch.tensor([[draws.random() < 0.4 for _ in range(vocabulary)] for _ in range(3)])
    # A token without text has no letters.
    edges[:2] &= ~edges[2]
    states = PhraseStates(phrases, edges, torch.tensor([0]))
    hypotheses = states.start().take(torch.zeros(3, num_hypotheses, dtype=torch.long))
    for _ in range(8):
        after_tracked = states.needed_after_tracked_tokens(hypotheses)
        everything = torch.arange(vocabulary).expand(3, num_hypotheses, -1)
        after_other_tokens = states.needed_after_other_tokens(hypotheses, everything)
        are_tracked = states.are_tracked(everything)
        for token in range(vocabulary):
            followed = states.follow(hypotheses, torch.full((3, num_hypotheses), token))
            needed = states.needed(followed)
            for sentence, tracked_tokens in enumerate(states.tracked_tokens.tolist()):
                assert are_tracked[sentence, 0, token] == (token in tracked_tokens)
                if token in tracked_tokens:
                    needed_after_token = after_tracked[sentence, :, tracked_tokens.index(token)]
                else:
                    needed_after_token = after_other_tokens[sentence, :, token]
                assert needed_after_token.tolist() == needed[sentence].tolist()
        chosen = [[draws.randrange(vocabulary) for _ in range(num_hypotheses)] for _ in range(3)]
        hypotheses = states.follow(hypotheses, torch.tensor(chosen))


def _random_alternatives(draws, words):
    phrases = []
    for _ in range(draws.randint(1, 4)):
        alternatives = set()
        for _ in range(draws.randint(1, 4)):
            alternatives.add(tuple(draws.randint(1, words) for _ in range(draws.randint(1, 4))))
        phrases.append(tuple(alternatives))
    return phrases


class _LargestTensor(TorchDispatchMode):
    """Remembers the elements of the largest tensor that an operation computes."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parametrize(("num_phrases", "forms", "length"), [(2, 10, 200), (50, 2, 4), (5, 20, 20)])
def test_memory_grows_with_positions_and_not_with_their_product_with_tokens(num_phrases, forms, length):
    draws = random.Random(0)
    vocabulary, num_beams = 600, 4
    phrases = [
        tuple(tuple(draws.randrange(1, vocabulary) for _ in range(length)) for _ in range(forms))
        for _ in range(num_phrases)
    ]
    options = {"num_return_sequences": 1, "length_penalty": penalty_of("gnmt", 0.6), "early_stopping": "never"}
    limits = torch.tensor([num_phrases * length + 1])
    edges = torch.zeros(3, vocabulary, dtype=torch.bool)
    prompts, eos = torch.tensor([[0]]), torch.tensor([0])
    with _LargestTensor() as largest:
        search = ConstrainedBeamSearch(
            num_beams, phrases=[phrases], letter_edges=edges, prompts=prompts, eos=eos, limits=limits, fill=0, **options
        )
        _, tokens = search.extend(torch.randn(num_beams, vocabulary).log_softmax(-1))
        search.prune(tokens == 0, torch.zeros_like(tokens, dtype=torch.bool))
    positions = num_phrases * forms * length
    cells = positions + vocabulary * num_phrases
    assert largest.elements <= num_beams * (cells + vocabulary)
