"""The page of `serve --page`: a translation, its beams, the probabilities of its tokens, and attention."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import gradio as gr
from fastapi import FastAPI, HTTPException
from fastapi.responses import RedirectResponse

from ..details import Translation
from ..evaluation.attention_pictures import draw_attention
from ..evaluation.forward_pass import KINDS, forward_pass
from ..evaluation.token_text import token_texts
from ..forced_decoding import is_engine
from ..model.tokenization_two_vocabularies import sides_of
from .service import Service


PATH = "/page"
_MOST_BEAMS = 16
_CSS = """
.tokens {display: flex; flex-wrap: wrap; gap: 0.35rem; padding: 0.5rem 0}
.tokens span {display: flex; flex-direction: column; align-items: center; padding: 0.2rem 0.5rem; border-radius: 0.3rem;
  border: 1px solid var(--border-color-primary); white-space: pre}
.tokens small {opacity: 0.75}
.hypotheses.hypotheses {width: 100%; border-collapse: collapse; border: 0}
.hypotheses.hypotheses :is(th, td) {text-align: left; padding: 0.4rem 0.6rem; overflow-wrap: anywhere; border: 0;
  border-bottom: 1px solid var(--border-color-primary)}
.hypotheses.hypotheses :is(th, td):not(:first-child) {text-align: right; white-space: nowrap}
"""
_TITLES = {
    "cross": "decoder to source",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
}


def add_page(app: FastAPI, service: Service) -> None:
    """Add the page to the server's app, at `PATH`, to which the app's root leads."""

    @app.get("/", include_in_schema=False)
    async def to_page() -> RedirectResponse:
        return RedirectResponse(f"{PATH[1:]}/")

    gr.mount_gradio_app(
        app, build_page(service), PATH, theme=gr.themes.Default(), css=_CSS, ssr_mode=False, footer_links=[]
    )
    # An open page holds a connection, for which a shutdown would wait.
    mounted: Any = app.routes[-1]
    app.state.end_streams = mounted.app.stop_event.set


def build_page(service: Service) -> gr.Blocks:
    """The page, whose work the service does."""
    with gr.Blocks(title=service.card.title, analytics_enabled=False) as page:
        gr.Markdown(f"# {service.card.title}")
        with gr.Row():
            with gr.Column(min_width=280):
                label = _label("Text", service.card.source_language)
                source = gr.Textbox(label=label, lines=4, max_lines=12, autofocus=True)
                beams = gr.Slider(1, _MOST_BEAMS, service.num_beams, step=1, label="Beams")
                splits = gr.Checkbox(bool(service.split_sentences), label="Split into sentences")
                button = gr.Button("Translate", variant="primary")
            with gr.Column(min_width=280):
                label = _label("Translation", service.card.target_language)
                target = gr.Textbox(label=label, lines=4, max_lines=12, interactive=False, buttons=["copy"])
        if service.card.examples:
            gr.Examples([[text] for text in service.card.examples], source, label="Examples")
        with gr.Tab("Beams"):
            hypotheses = gr.HTML("<p>The hypotheses of beam search, best first.</p>")
        with gr.Tab("Token probabilities"):
            tokens = gr.HTML("<p>The probability of each token given the tokens before it.</p>")
        translated = gr.State(("", ""))

        async def translate(text: str, count: int, splits: bool) -> tuple[Any, ...]:
            options: dict[str, Any] = {
                "return_details": True,
                "num_beams": int(count),
                "num_return_sequences": int(count),
            }
            options["split_sentences"] = (service.card.source_language or True) if splits else False
            (found,) = await _asking(service.translate([text], options))
            return found.text, _hypotheses(found), _tokens(service, found), (text, found.text)

        outputs = [target, hypotheses, tokens, translated]
        events = [button.click, source.submit]
        gr.on(events, translate, [source, beams, splits], outputs, api_name="translate")
        if not is_engine(service.model):
            _add_attention(service, translated)
    return page


def _add_attention(service: Service, translated: gr.State) -> None:
    config = service.model.config
    with gr.Tab("Attention"):
        with gr.Row():
            kind = gr.Dropdown([(_TITLES[kind], kind) for kind in reversed(KINDS)], value="cross", label="Attention")
            layer = gr.Dropdown(
                list(range(config.num_hidden_layers)), value=config.num_hidden_layers - 1, label="Layer"
            )
            head = gr.Dropdown(["all", *range(config.num_attention_heads)], value="all", label="Head")
        plot = gr.Plot(show_label=False)

    def picture(pair: tuple[str, str], kind: str, layer: int, head: Any) -> Any:
        found = forward_pass(service.model, service.tokenizer, *pair)
        return draw_attention(found, kind=kind, layer=layer, head=None if head == "all" else head)

    async def draw(pair: tuple[str, str], kind: str, layer: int, head: int | str) -> Any:
        if not pair[0].strip() or not pair[1].strip():
            return None
        return await _asking(service.batcher.call(picture, pair, kind, layer, head))

    inputs: list[Any] = [translated, kind, layer, head]
    gr.on([each.change for each in inputs], draw, inputs, plot, api_name="attention")


async def _asking(work: Any) -> Any:
    """The result of the service's work; its errors as messages of the page."""
    try:
        return await work
    except HTTPException as error:
        raise gr.Error(str(error.detail), duration=None) from error
    except ValueError as error:
        raise gr.Error(str(error), duration=None) from error


def _label(text: str, language: str | None) -> str:
    return f"{text} ({language})" if language else text


def _hypotheses(best: Translation) -> str:
    """A row for each hypothesis: its text, the score that ranks it, and its log-probability."""
    rows = "".join(
        f"<tr><td>{escape(each.text)}</td><td>{each.score:.3f}</td><td>{sum(each.log_probs):.3f}</td></tr>"
        for each in (best, *best.alternatives)
    )
    head = "<tr><th>Hypothesis</th><th>Score</th><th>log P</th></tr>"
    return f'<table class="hypotheses"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def _tokens(service: Service, found: Translation) -> str:
    """Tokens with their probabilities, the less probable the redder."""
    spans = [
        f'<span style="background: rgb(220 38 38 / {0.6 * (1 - probability):.2f})">{escape(text)}'
        f"<small>{probability:.0%}</small></span>"
        for text, probability in _probabilities(service, found)
    ]
    return f'<div class="tokens">{"".join(spans)}</div>'


def _probabilities(service: Service, found: Translation) -> Sequence[tuple[str, float]]:
    ids = sides_of(service.tokenizer)[1].convert_tokens_to_ids(found.tokens)
    texts = token_texts(service.tokenizer, ids, of_target=True)
    return [(text, math.exp(log_prob)) for text, log_prob in zip(texts, found.log_probs, strict=True)]
