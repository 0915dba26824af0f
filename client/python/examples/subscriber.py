import shmcast

with shmcast.Subscriber("prices", start="oldest", wait_for_channel=5) as prices:
    for event in prices:  # until the channel is over
        match event:
            case shmcast.Message(payload=price, sequence=sequence):
                print(f"{sequence}: {price.decode()}")
            case shmcast.Lapped(missed=missed):
                print(f"too slow: missed {missed} messages")
