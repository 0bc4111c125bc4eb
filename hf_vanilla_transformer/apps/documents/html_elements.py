"""Group the names of HTML elements by how they are treated in a translation.

To support another element, add its name to one of the sets below. For example, to add an inline element whose content
must never be translated, such as `<code>`, add its name to `NEVER_TRANSLATED`. No other change is needed.
"""

# Blocks: no sentence extends across the start or the end of these elements.
BLOCKS = frozenset(
    {"html", "head", "body", "title", "frameset", "noscript", "main", "nav"}
    | {"p", "div", "section", "article", "blockquote", "ul", "ol", "li", "dl", "dt", "dd", "dir", "menu", "search"}
    | {"h1", "h2", "h3", "h4", "h5", "h6", "hgroup", "header", "footer", "address", "aside", "center", "details"}
    | {"summary", "dialog", "figure", "figcaption", "form", "fieldset", "legend", "button", "select", "optgroup"}
    | {"option", "table", "caption", "colgroup", "col", "tbody", "thead", "tfoot", "tr", "td", "th", "pre", "br"}
    | {"listing", "textarea", "hr"}
)

# Inline elements that are part of a sentence even if there is no text next to them.
PHRASING = frozenset(
    {"a", "abbr", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "ins", "mark", "q", "rb"}
    | {"ruby", "s", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u"}
)

# Inline elements whose content the model does not see. They are copied into the translation.
NEVER_TRANSLATED = frozenset({"code", "kbd", "samp", "var"})

# Elements inside `<ruby>` that show how its text is pronounced, and the brackets for browsers that do not support it.
READINGS = frozenset({"rt", "rp", "rtc"})

# Elements whose content browsers do not parse: it contains no elements and no entities.
RAW = frozenset({"script", "style", "xmp", "iframe", "noembed", "noframes", "plaintext"})

# Elements that are copied because their content is code, a different markup language, or a fallback for browsers that
# do not support the element.
FOREIGN = frozenset(RAW | {"svg", "math", "template", "object", "canvas", "audio", "video", "applet"})

# SVG and MathML elements that may contain HTML.
HTML_INSIDE_FOREIGN = frozenset(
    {"foreignObject", "desc", "title", "annotation-xml", "mi", "mo", "mn", "ms", "mtext"},
)

# Elements without an end tag.
VOID = frozenset(
    {"area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param", "source", "track"}
    | {"wbr", "basefont", "bgsound", "keygen"}
)

# Elements whose line breaks are visible to readers.
PREFORMATTED = frozenset({"pre", "listing", "textarea"})

# Every name by which a text is recognized as HTML. The last set contains elements that need no special treatment;
# an element that gets a special treatment moves from there to the set of that treatment.
HTML_NAMES = frozenset(
    BLOCKS
    | PHRASING
    | NEVER_TRANSLATED
    | READINGS
    | FOREIGN
    | VOID
    | {"acronym", "datalist", "label", "map", "meter", "nobr", "output", "picture", "progress", "slot"}
)

# Attributes whose values readers see or hear as text, in the order in which they are translated.
TEXT_ATTRIBUTES = ("alt", "title", "placeholder", "aria-label")

# The parent that HTML requires around an element. A fragment that starts with the element is parsed inside this parent,
# because browsers drop, for example, a `<td>` that is outside of a `<tr>`.
REQUIRED_PARENTS = {
    "td": "tr",
    "th": "tr",
    "tr": "tbody",
    "col": "colgroup",
    "tbody": "table",
    "thead": "table",
    "tfoot": "table",
    "caption": "table",
    "colgroup": "table",
}
