"""A user's program: `mypy --strict` checks it against an installed wheel, and a test runs it."""
import asyncio
import sys
from collections.abc import Sequence

from hermes_lite import HermesLite, Hits, Remembered, Vectorizer


class Mine:
    """A vectorizer without the members that may be left out."""
    name, model = "mine", "m"
    dimension: int | None = 2
    threshold, remote = 0.5, False

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, float(len(text))] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed([text])[0]


async def main(root: str) -> Hits:
    vectorizer: Vectorizer = Mine()
    with HermesLite(root, vectorizer=vectorizer) as memory:
        async def keep(number: int) -> Remembered:
            return await asyncio.to_thread(memory.remember, f"Shelf {number} holds the lamp",
                                           importance=7)
        made = await asyncio.gather(*(keep(number) for number in range(8)))
        print(len({one.id for one in made}))
        hits = await asyncio.to_thread(memory.recall, "shelf 3", top_k=1)
        for hit in hits:
            print(hit.content, hit.score > 0)
        return hits


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
