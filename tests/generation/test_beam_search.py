"""The search alone, on languages of a few words, against searches that leave nothing out."""

import functools
import itertools
import math
import random
from collections import Counter

import pytest
import torch

from hf_vanilla_transformer.acceleration import grouped_top_tokens
from hf_vanilla_transformer.model.beam_search import LENGTH_PENALTIES, BeamSearch, top_tokens


EOS, WORDS, LIMIT = 0, 4, 5


@pytest.fixture
def path():
    """There is no model here."""


@functools.cache
def draw_log_probs(seed: int, ending: float, beginning: tuple[int, ...]) -> torch.Tensor:
    draws = random.Random(f"{seed} {beginning}")
    logits = torch.tensor([draws.gauss(0, 1.5) for _ in range(WORDS)])
    logits[EOS] += ending
    return logits.log_softmax(-1)


class Language:
    """Log-probabilities of the next word after every beginning, drawn at random, and the same whenever asked for."""

    def __init__(self, seed: int, ending: float = 0.0):
        self.seed, self.ending = seed, ending

    def log_probs(self, beginning: tuple[int, ...]) -> torch.Tensor:
        """`(words,)`"""
        return draw_log_probs(self.seed, self.ending, beginning)

    def score(self, words: tuple[int, ...], penalty) -> float:
        total = sum(self.log_probs(words[:place])[word].item() for place, word in enumerate(words))
        return total / penalty(len(words))


def everything(language: Language, limit: int, penalty) -> list[tuple[float, tuple[int, ...]]]:
    """All sequences up to a length that end, best first; then all that do not."""
    words_that_go_on = [word for word in range(WORDS) if word != EOS]
    finished = [
        (*words, EOS) for length in range(limit) for words in itertools.product(words_that_go_on, repeat=length)
    ]
    cut = list(itertools.product(words_that_go_on, repeat=limit))
    return [
        pair
        for group in (finished, cut)
        for pair in sorted(((language.score(words, penalty), words) for words in group), reverse=True)
    ]


def penalty_of(penalty_type: str, alpha: float):
    return functools.partial(LENGTH_PENALTIES[penalty_type], alpha=alpha)


class PatientSearch(BeamSearch):
    """A search that runs while any hypothesis may continue."""

    def _is_decided(self, best_running: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(best_running, dtype=torch.bool)


def search(
    languages,
    num_beams,
    limits,
    penalty,
    *,
    alpha=0.6,
    num_results=1,
    early_stopping="never",
    search_class=BeamSearch,
    leaves=False,
):
    """For each sentence the best `num_results` scores and words, and the number of steps that it took for all."""
    beams = search_class(
        num_beams,
        num_return_sequences=num_results,
        num_eos=1,
        length_penalty=penalty,
        early_stopping=early_stopping,
        limits=torch.tensor(limits),
        fill=EOS,
    )
    words = [()] * (len(languages) * num_beams)
    while beams.num_running:
        log_probs = [languages[row // num_beams].log_probs(beginning) for row, beginning in enumerate(words)]
        _, tokens = beams.extend(torch.stack(log_probs))
        is_cut = torch.tensor(limits)[:, None].expand(tokens.shape) <= beams.length
        beams.prune(tokens == EOS, is_cut)
        words = [
            (*words[row], word) for row, word in zip(beams.rows.tolist(), beams.tokens[:, 0].tolist(), strict=True)
        ]
        if leaves and beams.num_running:
            running = beams.drop_finished().tolist()
            languages, limits = [languages[place] for place in running], [limits[place] for place in running]
            words = [beginning for place in running for beginning in words[place * num_beams : (place + 1) * num_beams]]
    tokens, scores, rows = beams.best()
    results = []
    for score, row, places in zip(scores.tolist(), tokens.tolist(), rows.tolist(), strict=True):
        length = sum(place >= 0 for place in places)
        assert not any(row[length:])
        results.append((score, tuple(row[:length])))
    return [results[begin : begin + num_results] for begin in range(0, len(results), num_results)], beams.length


def search_by_hand(language, num_beams, limit, penalty, is_decided):
    """Scores and words of the best that have ended, and the number of steps, of a search in plain Python."""
    running, ended = [(0.0, ())], []
    for length in range(1, limit + 1):
        candidates = [
            (score + log_prob, (*words, word))
            for score, words in running
            for word, log_prob in enumerate(language.log_probs(words).tolist())
        ]
        candidates = sorted(candidates, reverse=True)[: 2 * num_beams]
        ended += [(score / penalty(length), words) for score, words in candidates if words[-1] == EOS]
        ended = sorted(ended, reverse=True)[:num_beams]
        running = [candidate for candidate in candidates if candidate[1][-1] != EOS][:num_beams]
        if is_decided(ended, running[0][0], length):
            break
    return ended, length


def assert_same(results, expected):
    assert [words for _, words in results] == [words for _, words in expected]
    assert [score for score, _ in results] == pytest.approx([score for score, _ in expected], abs=1e-5)


@pytest.mark.parametrize("penalty_type", LENGTH_PENALTIES)
@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 1.0, 3.0])
def test_a_wide_beam_finds_what_an_exhaustive_search_finds(penalty_type, alpha):
    penalty = penalty_of(penalty_type, alpha)
    for seed in range(5):
        language = Language(seed)
        # As many beams as there are beginnings that go on.
        (results,), _ = search([language], 3**LIMIT, [LIMIT], penalty, alpha=alpha, num_results=20)
        assert_same(results, everything(language, LIMIT, penalty)[:20])


def test_beam_search_narrow_misses_the_best():
    penalty, missed = penalty_of("gnmt", 0.6), {2: 0, 3**LIMIT: 0}
    for seed in range(40):
        language = Language(seed, ending=-3.0)
        exact, *_ = everything(language, LIMIT, penalty)
        for num_beams in missed:
            ((best,),), _ = search([language], num_beams, [LIMIT], penalty)
            assert best[0] <= exact[0] + 1e-6
            missed[num_beams] += best[1] != exact[1]
    assert missed[2] > 0
    assert missed[3**LIMIT] == 0


@pytest.mark.parametrize("penalty_type", LENGTH_PENALTIES)
@pytest.mark.parametrize(("alpha", "num_results"), [(0.6, 1), (0.6, 3), (2.0, 1), (-0.5, 2)])
def test_beam_search_early_stop_loses_nothing(penalty_type, alpha, num_results):
    penalty, limit, saved = penalty_of(penalty_type, alpha), 8, 0
    for seed in range(20):
        language = Language(seed, ending=1.0)
        (results,), steps = search([language], 3, [limit], penalty, alpha=alpha, num_results=num_results)
        (patient_results,), all_steps = search(
            [language], 3, [limit], penalty, alpha=alpha, num_results=num_results, search_class=PatientSearch
        )
        assert_same(results, patient_results)
        saved += all_steps - steps
    assert saved > 0


def test_beam_search_ranks_truncated_hypotheses_last():
    penalty = penalty_of("gnmt", 0.6)
    never, seldom = Language(1, ending=-torch.inf), Language(0, ending=-2.0)
    ((cut,),), _ = search([never], 3**4, [4], penalty)
    assert EOS not in cut[1]
    assert_same([cut], [max((never.score(words, penalty), words) for words in itertools.product((1, 2, 3), repeat=4))])
    (results,), _ = search([seldom], 3**4, [4], penalty, num_results=60)
    has_ended = [words[-1] == EOS for _, words in results]
    assert has_ended == sorted(has_ended, reverse=True)
    assert 0 < sum(has_ended) < 60
    best_cut, worst_ended = results[sum(has_ended)][0], results[sum(has_ended) - 1][0]
    assert best_cut > worst_ended


def test_beam_search_sentences_are_independent():
    penalty = penalty_of("gnmt", 0.6)
    languages = [Language(seed, ending=seed % 3 - 1.0) for seed in range(12)]
    limits = [2 + seed % 7 for seed in range(12)]
    together, _ = search(languages, 3, limits, penalty, num_results=2)
    for language, limit, results in zip(languages, limits, together, strict=True):
        (results_alone,), _ = search([language], 3, [limit], penalty, num_results=2)
        assert_same(results, results_alone)


def test_beam_search_fewer_hypotheses_than_requested():
    penalty = penalty_of("hf", 3.0)
    short, long = Language(0, ending=-1.0), Language(1, ending=-1.0)
    (results, _), _ = search([short, long], 6, [1, 8], penalty, alpha=3.0, num_results=6)
    assert_same(results[:4], everything(short, 1, penalty))
    assert [words for _, words in results[4:]] == [(), ()]
    assert all(score == results[-1][0] < -1e8 for score, _ in results[4:])


def test_beam_search_early_stopping_rules():
    penalty, num_beams, limit = penalty_of("gnmt", 0.6), 2, 12
    rules = {
        True: lambda ended, best_running, length: len(ended) == num_beams,
        False: lambda ended, best_running, length: (
            len(ended) == num_beams and best_running / penalty(length) <= ended[-1][0]
        ),
        "never": lambda ended, best_running, length: len(ended) > 0 and best_running / penalty(limit) <= ended[0][0],
    }
    all_steps = {}
    for early_stopping, is_decided in rules.items():
        all_steps[early_stopping] = []
        for seed in range(20):
            (expected, *_), steps = search_by_hand(Language(seed), num_beams, limit, penalty, is_decided)
            (results,), num_steps = search([Language(seed)], num_beams, [limit], penalty, early_stopping=early_stopping)
            assert_same(results, [expected])
            assert num_steps == steps
            all_steps[early_stopping].append(steps)
    assert all(first != second for first, second in itertools.combinations(all_steps.values(), 2))


def test_beam_search_samples_by_probability():
    language, count = Language(0), 4000
    beams = PatientSearch(
        2,
        num_return_sequences=1,
        num_eos=1,
        length_penalty=penalty_of("gnmt", 0.6),
        early_stopping="never",
        limits=torch.full((count,), LIMIT),
        fill=EOS,
    )
    torch.manual_seed(0)
    running = [(0.0, ())]
    for _ in range(2):
        log_probs = [language.log_probs(words) for _, words in running]
        # All beams begin alike, so one of them counts at first.
        rows, tokens = beams.extend(torch.stack(log_probs * (2 // len(running))).repeat(count, 1), do_sample=True)
        totals = torch.stack(
            [score + word_log_probs for (score, _), word_log_probs in zip(running, log_probs, strict=True)]
        ).flatten()
        sayings = [(*words, word) for _, words in running for word in range(WORDS)]
        first = zip(rows[:, 0].tolist(), tokens[:, 0].tolist(), strict=True)
        drawn_first = Counter((*running[row % 2][1], word) for row, word in first)
        assert drawn_first.keys() <= set(sayings)
        for saying, share in zip(sayings, totals.softmax(-1).tolist(), strict=True):
            # Five standard deviations of a count among so many.
            assert abs(drawn_first[saying] - count * share) <= 5 * math.sqrt(count * share * (1 - share))
        # All four candidates were drawn, so the same two continue everywhere.
        beams.prune(tokens == EOS, torch.zeros(tokens.shape, dtype=torch.bool))
        going_on = [pair for pair in zip(totals.tolist(), sayings, strict=True) if pair[1][-1] != EOS]
        running = sorted(going_on, reverse=True)[:2]


@pytest.mark.parametrize("num_results", [1, 3])
def test_drop_finished_keeps_results(num_results):
    languages = [Language(seed, ending=seed % 3) for seed in range(12)]
    limits = [3 + seed % 5 for seed in range(12)]
    options = {"num_beams": 4, "limits": limits, "penalty": penalty_of("gnmt", 0.6), "num_results": num_results}
    (expected, _), (results, _) = (search(languages, **options, leaves=leaves) for leaves in (False, True))
    assert results == expected


@pytest.mark.parametrize("words", [64 * 8 - 1, 64 * 8, 64 * 8 + 1, 1_000])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("forbidden", [0.0, 0.999])
def test_top_tokens_equals_sort(monkeypatch, words, count, forbidden):
    monkeypatch.setattr(grouped_top_tokens, "_FEWEST_SCORES", 0)
    generator = torch.Generator().manual_seed(words)
    for _ in range(20):
        # Each number once, and minus infinity any number of times.
        scores = torch.stack([torch.randperm(words, generator=generator) for _ in range(5)]).float()
        scores[torch.rand(scores.shape, generator=generator) < forbidden] = -torch.inf
        best_scores, ids = top_tokens(scores, count)
        assert torch.equal(best_scores, scores.sort(dim=1, descending=True).values[:, :count])
        assert torch.equal(scores.gather(1, ids), best_scores)
        assert all(len(set(row)) == count for row in ids.tolist())


def test_top_tokens_takes_the_first_of_equal_scores(monkeypatch):
    monkeypatch.setattr(grouped_top_tokens, "_FEWEST_SCORES", 0)
    scores = torch.ones(300, 300).tril()
    _, ids = top_tokens(-scores, 1)
    assert ids[:, 0].tolist() == [*range(1, 300), 0]
    assert top_tokens(scores, 1)[1][:, 0].tolist() == [0] * 300
