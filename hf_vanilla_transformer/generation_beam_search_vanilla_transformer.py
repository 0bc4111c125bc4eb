"""The beam search of section 6.1, as in the authors' code: what goes on and what has ended, side by side.

Nothing here knows the model: log-probabilities in, hypotheses out. Shapes have named axes: batch (sentences), beams,
candidates, vocabulary, generated (length so far, in tokens).
"""

from collections.abc import Callable

import torch


# Far below the log-probability of any hypothesis, and still a number: minus infinity has no differences.
_NO_HYPOTHESIS = -1e9
_NO_ROW = -1
# Scores, (batch, hypotheses), and paths, (batch, hypotheses, generated, 2).
_Hypotheses = tuple[torch.Tensor, torch.Tensor]


def gnmt_length_penalty(length: float | torch.Tensor, alpha: float) -> float | torch.Tensor:
    """lp(Y) = ((5 + |Y|) / (5 + 1))^alpha of Wu et al. 2016, which section 6.1 uses.

    |Y| counts the generated tokens, `</s>` included.
    """
    return ((5 + length) / 6) ** alpha


def hf_length_penalty(length: float | torch.Tensor, alpha: float) -> float | torch.Tensor:
    """transformers' own: |Y|^alpha."""
    return length**alpha


LENGTH_PENALTIES: dict[str, Callable] = {"gnmt": gnmt_length_penalty, "hf": hf_length_penalty}


class BeamSearch:
    """The hypotheses of a batch of sentences.

    A step is [`extend`], which makes candidates of the running hypotheses, and [`keep`], which is told those that have
    ended. The best that have ended, by log P / lp(Y), are kept beside the best that go on, by log P. A sentence is done
    when none that goes on can win any more, or none may go on.

    With one beam it is greedy search: the best candidate is the only one.

    Args:
        sentences (`int`): number of sentences, batch.
        num_beams (`int`): hypotheses that go on, and as many that have ended, of each sentence.
        num_return_sequences (`int`): how many of the best are asked for.
        num_ends (`int`): number of tokens that end a hypothesis.
        length_penalty (`Callable`): lp, of a number of tokens or of a tensor of them.
        favors_length (`bool`): whether lp grows with the length.
        early_stopping (`bool` or `"never"`): when a sentence is done. `"never"`: no running hypothesis could enter the
            best `num_return_sequences`, were it to end at its most favourable length. `False`: nor the best `num_beams`
            if it ended now. `True`: `num_beams` have ended.
        limits (`torch.LongTensor` of shape `(batch,)`): most generated tokens of each sentence.
        fill (`int`): token behind the end of a hypothesis.
    """

    def __init__(
        self,
        sentences: int,
        num_beams: int,
        *,
        num_return_sequences: int,
        num_ends: int,
        length_penalty: Callable,
        favors_length: bool,
        early_stopping: bool | str,
        limits: torch.Tensor,
        fill: int,
    ):
        self.num_beams, self.num_return_sequences = num_beams, num_return_sequences
        self.num_candidates = num_beams * max(2, 1 + num_ends) if num_beams > 1 else 1
        self.length_penalty, self.favors_length = length_penalty, favors_length
        self.early_stopping = early_stopping
        self.limits = limits
        self.length = 0
        device = limits.device
        # A path has two numbers for each generated token: the token, and the row of the model's batch it came from.
        self._fill = torch.tensor([fill, _NO_ROW], device=device)
        none = torch.full((sentences, num_beams), _NO_HYPOTHESIS, dtype=torch.float32, device=device)
        no_path = torch.empty((sentences, num_beams, 0, 2), dtype=torch.long, device=device)
        self._running = none.clone(), no_path
        # All beams begin alike, so all but one are left out of the first step.
        self._running[0][:, 0] = 0
        self._ended = none, no_path
        self._cut = none, no_path
        self._candidates = none, no_path
        self._nothing_ended = True
        self._places = torch.arange(sentences, device=device)
        self._first_rows = self._places[:, None] * num_beams
        self._left: list[tuple[torch.Tensor, _Hypotheses, _Hypotheses]] = []

    def extend(self, log_probs: torch.Tensor, do_sample: bool = False) -> torch.Tensor:
        """Make candidates of the running hypotheses with every token behind them, and keep the best of each sentence.

        Args:
            log_probs (`torch.FloatTensor` of shape `(batch * beams, vocabulary)`): of the token that comes next.
            do_sample (`bool`): draw candidates without replacement, by their probabilities, instead of the best.

        Returns:
            `torch.LongTensor`: the candidates' generated tokens, `(batch, candidates, generated)`.
        """
        scores, paths = self._running
        vocabulary = log_probs.shape[-1]
        if do_sample:
            totals = (scores[..., None] + log_probs.view(*scores.shape, vocabulary)).flatten(1)
            chosen = torch.multinomial(totals.softmax(dim=-1), min(self.num_candidates, totals.shape[1]))
            totals, beams, tokens = totals.gather(1, chosen), chosen // vocabulary, chosen % vocabulary
        else:
            # The best of a sentence are among the best of each of its hypotheses.
            of_each, tokens = log_probs.topk(min(self.num_candidates, vocabulary))
            totals = (scores[..., None] + of_each.view(*scores.shape, -1)).flatten(1)
            totals, chosen = totals.topk(min(self.num_candidates, totals.shape[1]))
            beams, tokens = chosen // of_each.shape[1], tokens.view(len(scores), -1).gather(1, chosen)
        last = torch.stack([tokens, beams + self._first_rows[: len(beams)]], dim=-1)
        self._candidates = totals, torch.cat([_gather(paths, beams), last[:, :, None]], dim=2)
        self.length += 1
        return self._candidates[1][..., 0]

    def keep(self, has_ended: torch.Tensor, is_cut: torch.Tensor) -> None:
        """Share the candidates out among those that have ended and those that go on.

        Args:
            has_ended (`torch.BoolTensor` of shape `(batch, candidates)`): by a token such as `</s>`.
            is_cut (`torch.BoolTensor` of shape `(batch, candidates)`): whether no token may follow. Of those that have
                not ended, the best compete only where no hypothesis of their sentence has ended.
        """
        scores, paths = self._candidates
        if has_ended.any():
            self._ended = self._best(self._ended, has_ended)
            self._nothing_ended = False
        is_cut = is_cut & ~has_ended
        if is_cut.any():
            self._cut = self._best(self._cut, is_cut)
        going_on, chosen = scores.masked_fill(has_ended | is_cut, _NO_HYPOTHESIS).topk(self.num_beams)
        if not self._nothing_ended:
            going_on = going_on.masked_fill(self._is_decided(going_on[:, :1]), _NO_HYPOTHESIS)
        self._running = going_on, _gather(paths, chosen)

    def _best(self, kept: _Hypotheses, are_new: torch.Tensor) -> _Hypotheses:
        """The best `num_beams` of those kept so far and of the new candidates, by log P / lp(Y), in this order."""
        scores, paths = self._candidates
        is_there = are_new & (scores > _NO_HYPOTHESIS / 2)
        new = (scores / self.length_penalty(self.length)).masked_fill(~is_there, _NO_HYPOTHESIS)
        scores, chosen = torch.cat([kept[0], new], dim=1).topk(self.num_beams)
        return scores, _gather(torch.cat([self._filled(kept[1]), paths], dim=1), chosen)

    def _filled(self, paths: torch.Tensor) -> torch.Tensor:
        """Paths that may have ended, as long as those that go on."""
        missing = self.length - paths.shape[2]
        return torch.cat([paths, self._fill.expand(*paths.shape[:2], missing, 2)], dim=2)

    def _is_decided(self, best_running: torch.Tensor) -> torch.Tensor:
        """Whether no running hypothesis can win any more, `(batch, 1)`, of the best log P of each sentence's."""
        needed = self.num_return_sequences if self.early_stopping == "never" else self.num_beams
        worst = self._ended[0][:, needed - 1 : needed]
        if self.early_stopping is True:
            return worst > _NO_HYPOTHESIS / 2
        length: int | torch.Tensor = self.length
        if self.early_stopping == "never" and self.favors_length:
            length = self.limits[:, None]
        return (worst > _NO_HYPOTHESIS / 2) & (best_running / self.length_penalty(length) <= worst)

    @property
    def are_full(self) -> torch.Tensor:
        """Whether candidates are as long as their sentence's limit, `(batch, 1)`."""
        return self.length >= self.limits[:, None]

    @property
    def are_running(self) -> torch.Tensor:
        """Whether something of a sentence goes on, `(batch,)`."""
        return self._running[0][:, 0] > _NO_HYPOTHESIS / 2

    def leave(self) -> torch.Tensor:
        """Put the sentences that are done aside until [`best`] is asked for; returns which stay, `(kept,)`."""
        done, kept = (~self.are_running).nonzero()[:, 0], self.are_running.nonzero()[:, 0]
        self._left.append((self._places[done], _of(self._ended, done), _of(self._cut, done)))
        self._running, self._ended, self._cut = (_of(each, kept) for each in (self._running, self._ended, self._cut))
        self._places, self.limits = self._places[kept], self.limits[kept]
        return kept

    @property
    def rows(self) -> torch.Tensor:
        """Of the running hypotheses: the rows of the model's last batch that they continue, `(batch * beams,)`."""
        return self._running[1][:, :, -1, 1].flatten()

    @property
    def tokens(self) -> torch.Tensor:
        """Last tokens of the running hypotheses, `(batch * beams, 1)`."""
        return self._running[1][:, :, -1, 0].reshape(-1, 1)

    @property
    def num_running(self) -> int:
        """Number of sentences of which something goes on."""
        return int(self.are_running.sum())

    def best(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The best hypotheses of each sentence, best first; those that were cut come behind those that have ended.

        Where there are fewer than are asked for, the rest have no tokens, and scores below all others.

        Returns:
            Generated tokens, `(batch * num_return_sequences, generated)`; log P / lp(Y), `(batch *
            num_return_sequences,)`; and for each token the row of the model's batch that it came from, in the shape of
            the tokens, -1 behind the end.
        """
        groups = [*self._left, (self._places, self._ended, self._cut)]
        order = torch.cat([places for places, _, _ in groups]).argsort()
        scores = torch.cat([torch.cat([ended[0], cut[0]], dim=1) for _, ended, cut in groups])[order]
        paths = torch.cat(
            [torch.cat([self._filled(ended[1]), self._filled(cut[1])], dim=1) for _, ended, cut in groups]
        )
        paths = paths[order]
        is_there = scores > _NO_HYPOTHESIS / 2
        paths = torch.where(is_there[..., None, None], paths, self._fill)
        order = is_there.int().argsort(dim=1, descending=True, stable=True)[:, : self.num_return_sequences]
        scores, paths = scores.gather(1, order).flatten(), _gather(paths, order).flatten(0, 1)
        longest = int((paths[..., 1] != _NO_ROW).sum(dim=1).max())
        return paths[:, :longest, 0], scores, paths[:, :longest, 1]


def _gather(paths: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Of `(batch, hypotheses, generated, 2)`, those at `(batch, chosen)`."""
    return paths.gather(1, chosen[..., None, None].expand(-1, -1, *paths.shape[2:]))


def _of(hypotheses: _Hypotheses, sentences: torch.Tensor) -> _Hypotheses:
    scores, paths = hypotheses
    return scores[sentences], paths[sentences]
