"""Language codes."""

# ISO 639-1. The Hub accepts these codes as languages; a column name counts as a language only if it is one of them.
_ISO_639_1 = (
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo "
    "es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka "
    "kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng "
    "nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su "
    "sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)


def language_of(code: str | None) -> str | None:
    """The ISO 639-1 language of a code such as `"en"`, `"en_US"` or `"en-US"`; None if it has none."""
    language = (code or "").split("_")[0].split("-")[0]
    return language if language in _ISO_639_1.split() else None
