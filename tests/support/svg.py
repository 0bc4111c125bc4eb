"""What readers see in SVG files."""

import xml.etree.ElementTree as ET
from pathlib import Path


def words_of_svg(path: Path) -> set[str]:
    """Return the text of each text element."""
    return {"".join(element.itertext()) for element in ET.parse(path).iter() if element.tag.endswith("}text")}
