"""Work that leaves each kind of intent in the log of the mount that is the current directory: other
processes force the log meanwhile, so that checkpoints cut the chains of transactions."""
import fcntl, os, struct, sys, time

FICLONE, EXCHANGE_RANGE = 0x40049409, 0x40285881
PUNCH, KEEP_SIZE = 2, 1
has_exchange = "exchange" in sys.argv[1:]
has_renames = "renames" in sys.argv[1:]


def fragments(name, count):
    file = os.open(name, os.O_CREAT | os.O_RDWR)
    for n in range(count):
        os.pwrite(file, b"x" * 100, n * 8192)
    os.fsync(file)
    return file


def force(number):
    file = os.open(f"force{number}", os.O_CREAT | os.O_RDWR)
    for n in range(1000000):
        os.pwrite(file, b"x", n % 4096)
        os.fsync(file)


def names(number):
    os.mkdir(f"names{number}")
    for n in range(120):
        name = f"names{number}/{'n' * (1 + n * 3 % 200)}{n}"
        open(name, "w").close()
        os.link(name, f"{name}_linked")
        if n % 3 == 0:
            os.unlink(name)
        elif has_renames:
            os.rename(name, f"{name}_moved")


def clones(number):
    source = fragments(f"source{number}", 250)
    for n in range(4):
        clone = os.open(f"clone{number}_{n}", os.O_CREAT | os.O_RDWR)
        fcntl.ioctl(clone, FICLONE, source)
        for at in range(20):
            os.pwrite(clone, b"y" * 100, at * 16384)
        os.fsync(clone)
        os.ftruncate(clone, 8192)


def frees(number):
    for n in range(3):
        os.close(fragments(f"freed{number}_{n}", 120))
        os.unlink(f"freed{number}_{n}")


def attributes(number):
    open(f"attributes{number}", "w").close()
    for n in range(20):
        os.setxattr(f"attributes{number}", "user.large", bytes([n]) * (30000 + n))
        os.setxattr(f"attributes{number}", f"user.{n}", b"v" * (10 * n))
        os.removexattr(f"attributes{number}", "user.large")


def exchanges(number):
    files = [fragments(f"exchanged{number}_{n}", 100) for n in range(2)]
    for n in range(4):
        request = struct.pack("=iIQQQQ", files[n % 2], 0, 0, 0, 4096 * 150, 0)
        fcntl.ioctl(files[1 - n % 2], EXCHANGE_RANGE, request)


def start(work, number):
    child = os.fork()
    if child == 0:
        work(number)
        os._exit(0)
    return child


forces = [start(force, number) for number in range(2)]
time.sleep(0.05)
kinds = [names, clones, frees, attributes] + [exchanges] * has_exchange
workers = [start(work, number) for work in kinds for number in range(2)]
status = [os.waitpid(worker, 0)[1] for worker in workers]
for child in forces:
    os.kill(child, 9)
    os.waitpid(child, 0)
sys.exit(any(status))
