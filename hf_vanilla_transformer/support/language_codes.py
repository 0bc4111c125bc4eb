"""Recognize languages by their codes, such as `"de"`, `"deu"` and `"deu_Latn"`."""

import re


# For each language, its two-letter code (ISO 639-1) and its three-letter codes, including the code that FLORES and NLLB
# use for the main variety. The name of a column or a file suffix counts as a language if it is in this list.
_CODES = (
    "aa:aar ab:abk ae:ave af:afr ak:aka am:amh an:arg ar:ara:arb as:asm av:ava ay:aym:ayr az:aze:azj ba:bak be:bel "
    "bg:bul bi:bis bm:bam bn:ben bo:bod:tib br:bre bs:bos ca:cat ce:che ch:cha co:cos cr:cre cs:ces:cze cu:chu cv:chv "
    "cy:cym:wel da:dan de:deu:ger dv:div dz:dzo ee:ewe el:ell:gre en:eng eo:epo es:spa et:est:ekk eu:eus:baq "
    "fa:fas:per:pes ff:ful fi:fin fj:fij fo:fao fr:fra:fre fy:fry ga:gle gd:gla gl:glg gn:grn gu:guj gv:glv ha:hau "
    "he:heb hi:hin ho:hmo hr:hrv ht:hat hu:hun hy:hye:arm hz:her ia:ina id:ind ie:ile ig:ibo ii:iii ik:ipk io:ido "
    "is:isl:ice it:ita iu:iku ja:jpn jv:jav ka:kat:geo kg:kon ki:kik kj:kua kk:kaz kl:kal km:khm kn:kan ko:kor kr:kau "
    "ks:kas ku:kur:kmr kv:kom kw:cor ky:kir la:lat lb:ltz lg:lug li:lim ln:lin lo:lao lt:lit lu:lub lv:lav:lvs "
    "mg:mlg:plt mh:mah mi:mri:mao mk:mkd:mac ml:mal mn:mon:khk mr:mar ms:msa:may:zsm mt:mlt my:mya:bur na:nau nb:nob "
    "nd:nde ne:nep:npi ng:ndo nl:nld:dut nn:nno no:nor nr:nbl nv:nav ny:nya oc:oci oj:oji om:orm:gaz or:ori:ory os:oss "
    "pa:pan pi:pli pl:pol ps:pus:pbt pt:por qu:que:quy rm:roh rn:run ro:ron:rum ru:rus rw:kin sa:san sc:srd sd:snd "
    "se:sme sg:sag si:sin sk:slk:slo sl:slv sm:smo sn:sna so:som sq:sqi:alb:als sr:srp ss:ssw st:sot su:sun sv:swe "
    "sw:swa:swh ta:tam te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi ty:tah "
    "ug:uig uk:ukr ur:urd uz:uzb:uzn ve:ven vi:vie vo:vol wa:wln wo:wol xh:xho yi:yid:ydd yo:yor za:zha zh:zho:chi:cmn "
    "zu:zul "
    # Languages without a two-letter code: the other Chinese languages, and some languages of multilingual models.
    "cdo gan hak hsn lzh nan wuu yue ast ceb fil haw hmn ilo kea nso szl war"
)
# Maps each code to the shortest code of its language: "zh", "zho", "chi" and "cmn" to "zh".
_SHORTEST_CODES: dict[str, str] = {}
for _codes_of_language in _CODES.split():
    _shortest_code, *_longer_codes = _codes_of_language.split(":")
    _SHORTEST_CODES.update(dict.fromkeys([_shortest_code, *_longer_codes], _shortest_code))


def language_of(code: str | None) -> str | None:
    """Return the shortest code for a code's language: `"zh"` for `"zh-TW"`, `"zho_Hans"` or `"cmn"`.

    A script or a region in the code is ignored. Returns None if the code is None or unknown.
    """
    if code is None:
        return None
    # A script or a region may follow after a hyphen or an underscore. For example, "zho_Hans" is looked up as "zho".
    return _SHORTEST_CODES.get(re.split("[_-]", code)[0])
