"""Units, months, dates and times: their names, and one way to write each date and time."""

from __future__ import annotations

import re

_MEASURES = (  # names of one unit, after its worth; those of one line exclude each other
    ".001 mm millimeter millimetre, .01 cm centimeter centimetre, 1 m meter metre,"
    " 1000 km kilometer kilometre 公里, 1609.344 mile mi, .3048 ft foot feet, .0254 inch inches in,"
    " .9144 yd yard, ly lightyear",
    ".001 mg milligram, 1 g gram gramme, 1000 kg kilogram kilogramme, 1000000 t ton tonne,"
    " 453.59237 lb lbs pound, 28.349523125 oz ounce",
    ".001 ms millisecond, 1 s sec second, 60 min minute, 3600 h hr hour, 86400 day, 604800 week,"
    " 2629746 month, 31556952 year yr, 315569520 decade, 3155695200 century centuries",
    ".001 ml milliliter millilitre, 1 l liter litre, gallon gal, pint",
    "k kelvin, c celsius, f fahrenheit",
    "1 w watt, 1000 kw kilowatt, mw megawatt, gw gigawatt",
    "1 hz hertz, 1000 khz kilohertz, 1000000 mhz megahertz, 1000000000 ghz gigahertz",
    "kb kilobyte, mb megabyte, gb gigabyte, tb terabyte",
    "dollar usd, euro eur, gbp, cent, yen, rupee",
)
_MONTHS = (
    "january jan januar janvier enero gennaio janeiro, february feb februar février febrero"
    " febbraio fevereiro, march mar märz mars marzo março, april apr avril abril aprile,"
    " may mai mayo maggio maio, june jun juni juin junio giugno junho, july jul juli juillet julio"
    " luglio julho, august aug août agosto, september sep sept septembre septiembre settembre"
    " setembro, october oct oktober octobre octubre ottobre outubro, november nov novembre"
    " noviembre novembro, december dec dezember décembre diciembre dicembre dezembro"
)
_SPELT = (*_MEASURES, _MONTHS, "am, pm")
UNITS = {  # each spelling of a unit (or month), with its dimension, and its worth or else its name
    spelling: (number, names.split()[0])
    for number, line in enumerate(_SPELT)
    for names in line.split(",")
    for name in names.split()
    if name.isalpha()
    for spelling in (name, f"{name}s")
}
MEASURED = len(_MEASURES)  # dimensions from here on are none of a number
_OTHER = "square sq cubic cu per km2 m2 kmh mph degree degrees old"
OTHER = {*_OTHER.split()}

_MONTH = "|".join(sorted(_MONTHS.replace(",", "").split(), key=len, reverse=True))
DATE = re.compile(
    rf"\b(?:(?P<d>\d{{1,2}})(?:st|nd|rd|th|\.)?\s+(?:of\s+|de\s+)?(?P<m>{_MONTH})\b\.?,?"
    r"\s+(?:de\s+)?(?P<y>\d{4})"
    rf"|(?P<m2>{_MONTH})\b\.?\s+(?P<d2>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<y2>\d{{4}})"
    r"|(?P<y3>\d{4})(?P<sign>[-/.])(?P<m3>\d{1,2})(?P=sign)(?P<d3>\d{1,2})"
    r"|(?P<y4>\d{4}) ?年 ?(?P<m4>\d{1,2}) ?月 ?(?P<d4>\d{1,2})(?: ?日)?"
    r"|(?P<d5>\d{1,2})(?P<by>[-/.])(?P<m5>\d{1,2})(?P=by)(?P<y5>\d{4}))(?!\d|\s?BC)",
    re.I,
)
ISO = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_TIME = re.compile(r"(?<![\d:])(\d{1,2})(?:[:.]([0-5]\d))?\s?([ap])\.?m\b\.?(?!\w)", re.I)


def dated(text: str) -> str:
    """Return a text with whole dates as 2011-12-20 and times of half a day as 15:30.

    A date such as 1/2/2011, of which either number may be the day, stays as it is.
    """
    return _TIME.sub(_as_time, DATE.sub(_as_date, text))


def _as_date(found: re.Match[str]) -> str:
    day, month, year = (
        next(filter(None, (found[f"{part}{at}"] for at in ("", *"2345")))) for part in "dmy"
    )
    names = [month.lower() in names.split() for names in _MONTHS.split(",")]
    month = month if month.isdigit() else str(names.index(True) + 1)
    if found["by"] != "." and found["y5"] and int(month) > 12 >= int(day):
        day, month = month, day
    sure = found["by"] in (None, ".") or int(day) > 12 or day == month
    return f"{year}-{int(month):02}-{int(day):02}" if sure and int(month) <= 12 else found[0]


def _as_time(found: re.Match[str]) -> str:
    hour, minute, half = int(found[1]), found[2] or "00", found[3].lower()
    if not 1 <= hour <= 12:
        return found[0]
    return f"{hour % 12 + 12 * (half == 'p'):02}:{minute}"
