import shmcast

# If the channel is there from earlier, the sequence goes on.
with shmcast.Publisher("prices", capacity=1 << 20) as prices:
    for tick in range(40):
        price = f"bid {10000 + tick * 7 % 13}"
        sequence = prices.publish(price.encode())
        print(f"{sequence}: {price}")
