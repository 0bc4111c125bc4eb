"""Build the Gradio web page of `serve --page`.

The page shows a translation, the hypotheses of its beam search, its token probabilities, and attention weights.
"""

import asyncio
import math
from collections.abc import Awaitable
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import gradio as gr
from fastapi import FastAPI, HTTPException
from fastapi.responses import RedirectResponse
from transformers import PretrainedConfig, PreTrainedModel

from ....data.target_language import short_name
from ....model.input_checks import is_blank, sides_of
from ....translation.concurrent_use import encode
from ....translation.sentence_splitting import join_translations
from ....translation.translation_details import FLAG_MEANINGS, Translation
from ...pictures.attention import plot_attention
from ...pictures.forward_pass import KINDS
from ...pictures.token_labels import token_texts
from ...terms.glossary import parse_terms
from ..batcher import TranslateOptions
from ..errors import RequestError
from ..service import SentenceTranslations, Service


if TYPE_CHECKING:
    from matplotlib.figure import Figure


PATH = "/page"
_MOST_BEAMS = 16
# Routes of Gradio's API that the page does not use. They are blocked because they store data that clients send.
_STORING_ROUTES = ("upload", "process_recording", "deep_link", "component_server", "run-history")
# The server keeps the last translation of this many open pages in memory, so that their tabs can show it.
_MOST_SESSIONS = 500
# For sentences with more tokens, no attention plot is drawn, because it would be too small to read and slow to draw.
_MOST_TOKENS_OF_PICTURE = 100
_CSS = """
.tokens {display: flex; flex-wrap: wrap; gap: 0.35rem; padding: 0.5rem 0}
.tokens span {display: flex; flex-direction: column; align-items: center; padding: 0.2rem 0.5rem; border-radius: 0.3rem;
  border: 1px solid var(--border-color-primary); white-space: pre}
.tokens small {opacity: 0.75}
.hypotheses.hypotheses {width: 100%; border-collapse: collapse}
.hypotheses.hypotheses, .hypotheses.hypotheses :is(thead, tbody, tr) {border: 0 !important}
.hypotheses.hypotheses :is(th, td) {text-align: left; padding: 0.4rem 0.6rem; overflow-wrap: anywhere; border: 0;
  border-bottom: 1px solid var(--border-color-primary)}
.attention {overflow-x: auto}
.attention div {justify-content: safe center !important; align-items: safe center !important}
.attention img {min-width: 44rem}
.hypotheses.hypotheses :is(th, td):not(:first-child) {text-align: right; white-space: nowrap}
"""
_GLOSSARY_HELP = "A term and its translation in each line. More beams place terms better."
# The explanation that the page shows for each translation flag.
_FLAGS = {
    "split": "A sentence is longer than any that the model was trained on, so it was split.",
    "longer_than_training": "The text is longer than any that the model was trained on.",
    "truncated": f"The translation was {FLAG_MEANINGS['truncated']}.",
    "repetition": "The translation repeats itself.",
}
_KIND_LABELS = {
    "cross": "decoder to source",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
}
_Result = TypeVar("_Result")


class _Sentence(NamedTuple):
    """A translated sentence that the tabs of the page can show."""

    source: str
    translation: Translation


def add_page(app: FastAPI, service: Service) -> None:
    """Add the page to the server's app at `PATH`, and redirect the root URL of the app to the page."""

    @app.get("/", include_in_schema=False)
    async def redirect_to_page() -> RedirectResponse:
        # `PATH` without its slash is a relative URL. It works even if a proxy serves the app under a path.
        return RedirectResponse(f"{PATH[1:]}/")

    # The routes that refuse to store data have priority over Gradio's routes, because they are added first.
    _refuse_to_store(app)
    gr.mount_gradio_app(
        app, build_page(service), PATH, theme=gr.themes.Default(), css=_CSS, ssr_mode=False, footer_links=[]
    )
    # Gradio's app is in the route that was added last. Starlette's route class does not declare this app.
    gradio_route: Any = app.routes[-1]
    # Each open page keeps a connection open. The server calls `end_streams` when it shuts down, because it would
    # otherwise wait until all pages are closed.
    app.state.end_streams = gradio_route.app.stop_event.set


def _refuse_to_store(app: FastAPI) -> None:
    """Add routes that answer requests to store data on the server with status 403."""

    async def refuse() -> None:
        raise HTTPException(403, "the page stores no files.")

    for name in _STORING_ROUTES:
        route = f"{PATH}/gradio_api/{name}"
        # This path matches all URLs below the route.
        route_with_rest = route + "/{rest:path}"
        for path in (route, route_with_rest):
            app.add_api_route(path, refuse, methods=["GET", "POST"], include_in_schema=False)


def build_page(service: Service) -> gr.Blocks:
    """Build the page. `service` computes all translations and plots of the page, and applies its limits to them."""
    callbacks = _PageCallbacks(service)
    with gr.Blocks(title=service.card.title, analytics_enabled=False) as page:
        # The components appear on the page in the order in which they are created.
        gr.Markdown(f"# {service.card.title}")
        with gr.Row():
            with gr.Column(min_width=280):
                inputs = _build_inputs(service)
            with gr.Column(min_width=280):
                translation = _build_translation(service)
        if service.card.examples:
            gr.Examples([[text] for text in service.card.examples], inputs.source, label="Examples")
        details = _build_details()
        _connect_inputs(callbacks, inputs, translation, details)
        _connect_sentence_menu(callbacks, details)
        # An inference engine computes no attention weights.
        if service.runtime.has_forward_pass:
            _add_attention(callbacks, service.model.config, page, details.sentences_state, details.sentence_menu)
    _limit_page(page, service)
    return page


class _TranslationOutputs(NamedTuple):
    """The components of the page that show a translation, and the explanation of its flags."""

    target: gr.Textbox
    notes: gr.Markdown


def _build_translation(service: Service) -> _TranslationOutputs:
    """Build the components for the translation in the current column."""
    target_label = _label("Translation", service.card.target_language)
    target = gr.Textbox(label=target_label, lines=4, max_lines=12, interactive=False, buttons=["copy"])
    notes = gr.Markdown()
    return _TranslationOutputs(target, notes)


class _Details(NamedTuple):
    """The components of the page that show the details of one sentence.

    Args:
        sentence_menu: chooses the sentence. It is visible if there are several sentences.
        hypotheses, tokens: the HTML of the tabs "Beams" and "Tokens".
        sentences_state: a list of `_Sentence`: the sentences that were last translated on this open page.
    """

    sentence_menu: gr.Dropdown
    hypotheses: gr.HTML
    tokens: gr.HTML
    sentences_state: gr.State


def _build_details() -> _Details:
    """Build the menu of sentences, and the tabs "Beams" and "Tokens"."""
    sentence_menu = gr.Dropdown([], label="Sentence", visible=False)
    with gr.Tab("Beams"):
        hypotheses = gr.HTML("<p>The hypotheses of beam search, best first.</p>")
    with gr.Tab("Tokens"):
        tokens = gr.HTML("<p>The probability of each token given the tokens before it.</p>")
    return _Details(sentence_menu, hypotheses, tokens, sentences_state=gr.State([]))


def _connect_inputs(
    callbacks: "_PageCallbacks", inputs: "_Inputs", translation: _TranslationOutputs, details: _Details
) -> None:
    """Make the page translate when users press the button, or Shift+Enter in a text field."""
    # Gradio passes results by position, so this is the order of the results of `_PageCallbacks.translate`.
    outputs = [
        translation.target,
        translation.notes,
        details.sentence_menu,
        details.hypotheses,
        details.tokens,
        details.sentences_state,
    ]
    gr.on(
        triggers=[inputs.button.click, inputs.source.submit, inputs.terms.submit],
        fn=callbacks.translate,
        inputs=inputs.arguments,
        outputs=outputs,
        api_name="translate",
    )


def _connect_sentence_menu(callbacks: "_PageCallbacks", details: _Details) -> None:
    """Make the tabs show the sentence that users choose in the menu."""
    # Both lists have the order of the parameters and the results of `_PageCallbacks.show_sentence`.
    details.sentence_menu.input(
        fn=callbacks.show_sentence,
        inputs=[details.sentences_state, details.sentence_menu],
        outputs=[details.hypotheses, details.tokens],
        api_name="sentence",
    )


def _limit_page(page: gr.Blocks, service: Service) -> None:
    """Limit the requests that Gradio queues, and the open pages whose translations it keeps."""
    # The service limits the number of concurrent texts, so the queue only has to be large enough for all of them.
    most_requests = service.settings.max_in_flight
    page.queue(max_size=most_requests, default_concurrency_limit=most_requests)
    page.state_session_capacity = _MOST_SESSIONS


class _Inputs(NamedTuple):
    """The components of the page in which users enter a text, choose options, and start the translation.

    Args:
        source: the text to translate.
        terms: the glossary.
        button: starts the translation.
        arguments: the components whose values are the arguments of `_PageCallbacks.translate`, in their order.
    """

    source: gr.Textbox
    terms: gr.Textbox
    button: gr.Button
    arguments: list[gr.components.Component]


def _build_inputs(service: Service) -> _Inputs:
    """Build the inputs of the page in the current column."""
    source_label = _label("Text", service.source_language)
    source = gr.Textbox(label=source_label, lines=4, max_lines=12, autofocus=True)
    terms = gr.Textbox(label="Glossary", lines=2, info=_GLOSSARY_HELP, placeholder="machine = Maschine")
    # The field is hidden if the model does not support glossaries.
    terms.visible = service.runtime.takes_phrases
    beams = gr.Slider(1, _MOST_BEAMS, service.num_beams, step=1, label="Beams")
    split = gr.Checkbox(service.split_sentences, label="Split into sentences")
    # Gradio passes the values by position, so the order is that of the parameters of `_PageCallbacks.translate`: text,
    # glossary_lines, beams, split, and target_code, which is optional.
    arguments: list[gr.components.Component] = [source, terms, beams, split]
    # The service has target codes only if its model has several target languages.
    if service.target_codes:
        arguments.append(_build_target_menu(service))
    button = gr.Button("Translate", variant="primary")
    return _Inputs(source, terms, button, arguments)


class _PageCallbacks:
    """The functions that Gradio calls when a user translates a text, chooses a sentence, or changes the plot."""

    def __init__(self, service: Service):
        self._service = service

    async def translate(
        self, text: str, glossary_lines: str, beams: int, split: bool, target_code: str | None = None
    ) -> tuple[str, str, gr.Dropdown, str, str, list[_Sentence]]:
        """Translate a text, and return the new values of the components that show the translation.

        Gradio passes the values of the inputs in the order of `_Inputs.arguments`. `target_code` is missing if the page
        has no menu of target languages. The order of the results is the order of `outputs` in [`_connect_inputs`].

        Returns:
            `tuple`: the translation, sentences that explain its flags, the menu of sentences, the HTML of the tabs
            "Beams" and "Tokens", and the translated sentences.
        """
        options = _read_options(glossary_lines, int(beams))
        options.update(self._service.target_options(target_code))
        results = await _show_errors(self._service, self._service.translate_sentences([text], options, split))
        # There is one result, because there is one text.
        sentences_of_text = results[0]
        translation = join_translations(sentences_of_text.pieces, sentences_of_text.translations)
        sentences = _translated_sentences(sentences_of_text)
        menu = _build_sentence_menu(sentences)
        # The tabs show the first sentence until the user chooses a different one.
        hypotheses_table, token_row = self.show_sentence(sentences, 0)
        return translation.text, _describe_flags(translation), menu, hypotheses_table, token_row, sentences

    def show_sentence(self, sentences: list[_Sentence], index: int | None) -> tuple[str, str]:
        """Return the HTML of the tabs "Beams" and "Tokens" for the sentence with the given index.

        Both are empty if no sentence is chosen.
        """
        sentence = _find_sentence(sentences, index)
        if sentence is None:
            return "", ""
        return _write_hypotheses(sentence.translation), _write_tokens(self._service, sentence.translation)

    async def plot_attention(
        self,
        sentences: list[_Sentence],
        index: int | None,
        attention_kind: str,
        layer: int,
        head: int | Literal["all"],
        is_dark: bool,
    ) -> "Figure | None":
        """Return the attention plot of the chosen sentence.

        Gradio passes the values of the components in the order of `arguments` in [`_add_attention`].

        The result is None if no sentence is chosen, if its translation is blank, or if the sentence or its
        translation is too long to plot.
        """
        sentence = _find_sentence(sentences, index)
        if sentence is None or is_blank(sentence.translation.text):
            return None
        # None stands for all heads.
        head_number = None if head == "all" else head
        theme = "dark" if is_dark else "light"
        plotting = self._service.call(
            self._plot_in_worker,
            sentence.source,
            sentence.translation.text,
            attention_kind,
            layer,
            head_number,
            theme,
        )
        return await _show_errors(self._service, plotting)

    def _plot_in_worker(
        self, source: str, target: str, attention_kind: str, layer: int, head: int | None, theme: str
    ) -> "Figure | None":
        """Plot the attention weights of a sentence pair in the service's worker thread; None if a text is too long."""
        tokenizer = self._service.tokenizer
        # If either text is too long, there is no plot.
        for text in (source, target):
            if len(encode(tokenizer, text).input_ids) > _MOST_TOKENS_OF_PICTURE:
                return None
        # `self._service.model` may be an inference engine, but the page has this plot only if the model is a PyTorch
        # module.
        model = cast(PreTrainedModel, self._service.model)
        return plot_attention(
            model, tokenizer, source, target, kind=attention_kind, layer=layer, head=head, theme=theme
        )


def _find_sentence(sentences: list[_Sentence], index: int | None) -> _Sentence | None:
    """Return the sentence with an index, or None if there is none, for example because nothing has been translated."""
    if index is None or index >= len(sentences):
        return None
    return sentences[index]


def _translated_sentences(sentences_of_text: SentenceTranslations) -> list[_Sentence]:
    """Return the sentences of a text that the tabs of the page can show.

    Blank sentences and copied numbers have no tokens to show, because the model did not translate them.
    """
    sentences: list[_Sentence] = []
    for piece, translation in zip(sentences_of_text.pieces, sentences_of_text.translations, strict=True):
        if translation.tokens:
            sentences.append(_Sentence(piece.text, translation))
    return sentences


def _build_sentence_menu(sentences: list[_Sentence]) -> gr.Dropdown:
    """Build the menu in which users choose a sentence. The menu is hidden unless there are several sentences."""
    # Each choice is a label, such as "2. A dog.", and the index of the sentence.
    choices: list[tuple[str, int]] = []
    for index, sentence in enumerate(sentences):
        choices.append((f"{index + 1}. {sentence.source}", index))
    first_choice = 0 if sentences else None
    return gr.Dropdown(choices, value=first_choice, visible=len(sentences) > 1)


def _build_target_menu(service: Service) -> gr.Dropdown:
    """Build the menu in which users choose one of the model's target languages."""
    # Each choice is a label, such as "fr", and the target-language code, such as ">>fra<<".
    choices = [(short_name(service.target_codes, code), code) for code in service.target_codes]
    return gr.Dropdown(choices, value=service.default_target_code or service.target_codes[0], label="Into")


def _build_attention_menus(config: PretrainedConfig) -> tuple[gr.Dropdown, gr.Dropdown, gr.Dropdown]:
    """Build the menus in which users choose the attention weights to plot: their kind, their layer, and their head."""
    # Each choice is a label, such as "encoder self-attention", and the name of the kind, such as "encoder". The order
    # is reversed so that cross-attention, which is the default, comes first.
    kinds = [(_KIND_LABELS[attention_kind], attention_kind) for attention_kind in reversed(KINDS)]
    layers = list(range(config.num_hidden_layers))
    heads = ["all", *range(config.num_attention_heads)]
    kind_menu = gr.Dropdown(kinds, value="cross", label="Attention", min_width=240)
    layer_menu = gr.Dropdown(layers, value=layers[-1], label="Layer", min_width=240)
    head_menu = gr.Dropdown(heads, value="all", label="Head", min_width=240)
    return kind_menu, layer_menu, head_menu


def _add_attention(
    callbacks: _PageCallbacks,
    config: PretrainedConfig,
    page: gr.Blocks,
    sentences_state: gr.State,
    sentence_menu: gr.Dropdown,
) -> None:
    """Add a tab to the page that plots the attention weights of the chosen sentence.

    Args:
        sentences_state: the translated sentences.
        sentence_menu: the menu in which users choose one of them.
    """
    with gr.Tab("Attention"):
        with gr.Row():
            kind_menu, layer_menu, head_menu = _build_attention_menus(config)
        plot = gr.Plot(show_label=False, elem_classes="attention")
    dark_box = _add_hidden_box_for_dark_theme(page)

    events_that_redraw = [
        sentences_state.change,
        # Only users trigger `input`. A translation would trigger `change` here, too, and draw the plot twice.
        sentence_menu.input,
        kind_menu.change,
        layer_menu.change,
        head_menu.change,
    ]
    # The values of these components are the arguments of `plot_attention`, in this order.
    arguments = [sentences_state, sentence_menu, kind_menu, layer_menu, head_menu, dark_box]
    gr.on(
        triggers=events_that_redraw,
        fn=callbacks.plot_attention,
        inputs=arguments,
        outputs=plot,
        api_name="attention",
    )


def _add_hidden_box_for_dark_theme(page: gr.Blocks) -> gr.Checkbox:
    """Add a hidden checkbox, which is checked if the browser uses its dark color scheme, and return it."""
    dark_box = gr.Checkbox(visible=False)
    # Only the browser knows its color scheme. Without a function of the server, the result of the script is the value.
    page.load(fn=None, inputs=None, outputs=dark_box, js="() => document.body.classList.contains('dark')")
    return dark_box


def _read_options(glossary_lines: str, beams: int) -> TranslateOptions:
    """Convert the page's inputs to arguments of `translate()`.

    Args:
        glossary_lines: the glossary, with a term and its translation in each line.
        beams: the beam size. The arguments request all hypotheses.

    Raises:
        gr.Error: if the glossary cannot be parsed.
    """
    options: TranslateOptions = {"num_beams": beams, "num_return_sequences": beams, "return_details": True}
    try:
        # A tab or "=" separates a term from its translation.
        terms = parse_terms(glossary_lines.splitlines(), "the glossary", r"\t|=", 'a tab or "="')
    except ValueError as error:
        raise gr.Error(str(error), duration=None) from error
    if terms:
        options["glossary"] = terms
    return options


def _describe_flags(translation: Translation) -> str:
    """Explain the flags of a translation, such as "truncated", with one sentence for each possible problem."""
    return " ".join(sentence for flag, sentence in _FLAGS.items() if flag in translation.flags)


async def _show_errors(service: Service, work: Awaitable[_Result]) -> _Result:
    """Wait for a result of the service, and convert errors to messages that the page shows.

    `work` is cancelled if it takes longer than the time limit for a request.
    """
    try:
        return await asyncio.wait_for(work, service.settings.request_seconds)
    except TimeoutError:
        raise gr.Error("This took too long; try a shorter text, or fewer beams.", duration=None) from None
    except (RequestError, ValueError) as error:
        raise gr.Error(str(error), duration=None) from error


def _label(text: str, language: str | None) -> str:
    """Return a label that includes the language if it is known, such as "Text (en)"."""
    return f"{text} ({language})" if language else text


def _write_hypotheses(best: Translation) -> str:
    """Return an HTML table with the text, the score, and the log-probability of each hypothesis.

    `best` is the best hypothesis. Its attribute `alternatives` contains the other hypotheses.
    """
    hypotheses = [best, *best.alternatives]
    rows = ""
    for hypothesis in hypotheses:
        log_probability = sum(hypothesis.log_probs)
        rows += f"<tr><td>{escape(hypothesis.text)}</td>"
        rows += f"<td>{hypothesis.score:.3f}</td><td>{log_probability:.3f}</td></tr>"
    head = "<tr><th>Hypothesis</th><th>Score</th><th>log P</th></tr>"
    return f'<table class="hypotheses"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def _write_tokens(service: Service, translation: Translation) -> str:
    """Return HTML that shows the tokens of a translation with their probabilities.

    The less probable a token is, the redder is its background.
    """
    # A tokenizer with separate vocabularies consists of a tokenizer for sources and a tokenizer for targets. The tokens
    # of a translation belong to the second one.
    _, target_tokenizer = sides_of(service.tokenizer)
    ids = target_tokenizer.convert_tokens_to_ids(translation.tokens)
    texts = token_texts(service.tokenizer, ids, of_target=True)
    spans = ""
    for text, log_probability in zip(texts, translation.log_probs, strict=True):
        probability = math.exp(log_probability)
        # The opacity is at most 60 %, so that the text stays readable.
        opacity = 0.6 * (1 - probability)
        spans += f'<span style="background: rgb(220 38 38 / {opacity:.2f})">{escape(text)}'
        spans += f"<small>{probability:.0%}</small></span>"
    return f'<div class="tokens">{spans}</div>'
