"""Print the most frequent words of a file that have four or more letters: top_words.py FILE [COUNT]."""

import re
import sys
from collections import Counter
from pathlib import Path

words = re.findall(r"[^\W\d_]{4,}", Path(sys.argv[1]).read_text(encoding="utf-8").lower())
for word, number in Counter(words).most_common(int(sys.argv[2]) if len(sys.argv) > 2 else 10):
    print(number, word)
