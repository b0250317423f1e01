"""A text that a Markov chain writes, the same at every call: what follows a word is drawn from its own list.

Nothing in a list follows from another word's, so the table of what follows what has full rank.
A sum of few outer products cannot say it.
"""

import itertools
import math
import random

WORDS = 2000
FOLLOWERS = 16  # of each word, the k-th with a share of 1 / k
LENGTH = 400_000


def text(length: int = LENGTH) -> str:
    """Words divided by blanks, 20 to a line."""
    draw = random.Random(1)
    names = [f"w{word}" for word in range(WORDS)]
    followers = [draw.sample(range(WORDS), FOLLOWERS) for _ in names]
    shares = list(itertools.accumulate(1 / (rank + 1) for rank in range(FOLLOWERS)))
    word, written = 0, []
    for _ in range(length):
        written.append(names[word])
        (word,) = draw.choices(followers[word], cum_weights=shares)
    return "\n".join(" ".join(written[at:at + 20]) for at in range(0, length, 20)) + "\n"


def entropy() -> float:
    """Nats a word for whoever knows the lists: no model has a smaller loss."""
    shares = [1 / (rank + 1) for rank in range(FOLLOWERS)]
    return math.log(sum(shares)) - sum(share * math.log(share) for share in shares) / sum(shares)
