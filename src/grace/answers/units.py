"""Words that follow a number, by what they mean."""

from __future__ import annotations

SCALES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "lakh": 10**5,
    "million": 10**6,
    "crore": 10**7,
    "billion": 10**9,
    "trillion": 10**12,
}
ABBREVIATED = {"k": 10**3, "m": 10**6, "mn": 10**6, "b": 10**9, "bn": 10**9}
_TEENS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
COUNTED = {
    **{word: number for number, word in enumerate(_TEENS.split())},
    **{word: number for number, word in zip(range(20, 100, 10), _TENS.split(), strict=True)},
}
"""English words for numbers, without those of `SCALES`."""
ORDINALS = ("st", "nd", "rd", "th")
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth"
_ROMAN = "I II III IV V VI VII VIII IX X XI XII XIII XIV XV XVI XVII XVIII XIX XX"
ORDINAL_WORDS, ROMAN = _ORDINALS.split(), _ROMAN.split()
_SPELT = (  # names of one unit; those of one line exclude each other
    "mm millimeter millimetre, cm centimeter centimetre, m meter metre, km kilometer kilometre,"
    " mile mi, ft foot feet, inch inches in, yd yard, ly lightyear",
    "mg milligram, g gram gramme, kg kilogram kilogramme, t ton tonne, lb lbs pound, oz ounce",
    "ms millisecond, s sec second, min minute, h hr hour, day, week, month, year yr, decade,"
    " century centuries",
    "ml milliliter millilitre, l liter litre, gallon gal, pint",
    "k kelvin, c celsius, f fahrenheit",
    "w watt, kw kilowatt, mw megawatt, gw gigawatt",
    "hz hertz, khz kilohertz, mhz megahertz, ghz gigahertz",
    "kb kilobyte, mb megabyte, gb gigabyte, tb terabyte",
    "dollar usd, euro eur, cent, yen, rupee",
    "january jan, february feb, march mar, april apr, may, june jun, july jul, august aug,"
    " september sep sept, october oct, november nov, december dec",
    "am, pm",
)
UNITS = {
    spelling: (number, names.split()[0])
    for number, line in enumerate(_SPELT)
    for names in line.split(",")
    for name in names.split()
    for spelling in (name, f"{name}s")
}
"""Each spelling of a unit (or month), with its dimension and its one name."""
OTHER = {
    "square",
    "sq",
    "cubic",
    "cu",
    "per",
    "km2",
    "m2",
    "kmh",
    "mph",
    "degree",
    "degrees",
    "old",
}
