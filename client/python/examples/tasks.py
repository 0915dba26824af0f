"""Two readers and a publisher in one event loop, without a thread."""

import asyncio

import shmcast


async def show(name: str, prices: shmcast.Subscriber) -> None:
    async with prices:
        async for event in prices:  # until the channel is over
            print(name, event)


async def main() -> None:
    # With a daemon, use socket="" and wait="park". Then each message wakes its readers.
    publisher = shmcast.Publisher("ticks")
    readers = [shmcast.Subscriber("ticks") for _ in range(2)]
    shown = asyncio.gather(*(show(f"reader {n}:", reader) for n, reader in enumerate(readers)))
    with publisher:
        for tick in range(5):
            publisher.publish(f"bid {tick}".encode())
            await asyncio.sleep(0.01)
    await shown


asyncio.run(main())
