"""Many requests at once; those that are refused for lack of room are tried again:
python many.py [address] [requests]"""
import asyncio
import sys

from quire_client import Answer, AsyncClient, Params, QuireError

address = sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"
number = int(sys.argv[2]) if len(sys.argv) > 2 else 16


async def ask(client: AsyncClient, i: int) -> Answer:
    while True:
        try:
            return await client.generate(f"{i}, {i + 1}, {i + 2},", Params(max_tokens=8, temperature=0))
        except QuireError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(error.retry_after_s or 0.5)


async def main() -> None:
    async with AsyncClient(address) as client:
        answers = await asyncio.gather(*(ask(client, i) for i in range(number)))
    for i, answer in enumerate(answers):
        print(f"{i}: {answer.text!r}")


asyncio.run(main())
