# Random operations through two mounts that show the same files, compared with a model after each:
# every change is looked at through the other mount, by a new descriptor, by one that was opened
# before, and through a mapping.
#
# coherence.py SEED STEPS MOUNT_SECOND_COMMAND... -- DIR_A DIR_B
import errno, mmap, os, random, subprocess, sys

seed, steps = int(sys.argv[1]), int(sys.argv[2])
split = sys.argv.index("--")
mount_second, (dir_a, dir_b) = sys.argv[3:split], sys.argv[split + 1:]
dice = random.Random(seed)
NAMES = ["f%d" % n for n in range(6)]
DIRS = ["", "d0", "d1"]
SIZE_MAX = 60000
model = {}  # path -> [content, mode, group of hard links]
dirs = {""}
held = []  # (side, path, object of the model, descriptor, mapping or None)
sides = [dir_a]
step = "start"

def check(have, what):
    if not have:
        sys.exit("seed %d, step %s: %s" % (seed, step, what))

class File:
    def __init__(self):
        self.content, self.mode, self.links = bytearray(), 0o644, 1

def path(side, name):
    return os.path.join(sides[side], name)

def look(side):
    """Everything as this side shows it."""
    for d in DIRS:
        if d and d not in dirs:
            check(not os.path.lexists(path(side, d)), "%r is there" % d)
            continue
        names = sorted(n for n in os.listdir(path(side, d)) if n not in DIRS)
        wanted = sorted(os.path.basename(p) for p in model if os.path.dirname(p) == d)
        check(names == wanted, "side %d lists %r as %r, not %r" % (side, d, names, wanted))
        for name in NAMES:
            p = os.path.join(d, name)
            there = os.path.lexists(path(side, p))
            check(there == (p in model), "side %d: %r there: %r" % (side, p, there))
    for p, file in model.items():
        stat = os.stat(path(side, p))
        check(stat.st_size == len(file.content), "side %d: size of %r: %d, not %d" % (side, p, stat.st_size, len(file.content)))
        check(stat.st_mode & 0o777 == file.mode, "side %d: mode of %r: %o" % (side, p, stat.st_mode))
        check(stat.st_nlink == file.links, "side %d: links of %r: %d" % (side, p, stat.st_nlink))
        with open(path(side, p), "rb") as f:
            got = f.read()
        check(got == file.content, "side %d: content of %r: %s" % (side, p, differ(got, file.content)))

def differ(got, wanted):
    if got == wanted:
        return "nowhere"
    at = next((n for n, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
    return "%d bytes of %d, first difference at %d: %r, not %r" % (len(got), len(wanted), at, bytes(got[at:at + 8]), bytes(wanted[at:at + 8]))

def look_held():
    for side, p, file, fd, mapping in held:
        got = os.pread(fd, SIZE_MAX * 2, 0)
        check(got == file.content, "side %d: held %r: %s" % (side, p, differ(got, file.content)))
        check(os.fstat(fd).st_size == len(file.content), "side %d: size of held %r" % (side, p))
        if mapping is not None:
            size = min(len(mapping), len(file.content))
            check(mapping[:size] == file.content[:size], "side %d: mapped %r: %s" % (side, p, differ(mapping[:size], file.content[:size])))

def drop_held(index):
    side, p, file, fd, mapping = held.pop(index)
    if mapping is not None:
        mapping.close()
    os.close(fd)

def some_file():
    return dice.choice(sorted(model)) if model else None

def data():
    return bytes([dice.randrange(256)]) * dice.choice([1, 10, 100, 4096, 5000, 20000])

def write_at(file, offset, what):
    if len(file.content) < offset:
        file.content.extend(bytes(offset - len(file.content)))
    file.content[offset:offset + len(what)] = what

def create(side):
    d = dice.choice(sorted(dirs))
    p = os.path.join(d, dice.choice(NAMES))
    what = data()
    if p not in model:
        model[p] = File()
    fd = os.open(path(side, p), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    os.write(fd, what)
    os.close(fd)
    model[p].content[:] = what

def write(side):
    p = some_file()
    if p is None:
        return
    file, what = model[p], data()
    offset = dice.randrange(min(SIZE_MAX - 20000, len(file.content) + 5000))
    fd = os.open(path(side, p), os.O_WRONLY)
    os.pwrite(fd, what, offset)
    os.close(fd)
    write_at(file, offset, what)

def write_held(side):
    own = [h for h in held if h[0] == side]
    if own:
        _, p, file, fd, _ = dice.choice(own)
        what, offset = data(), dice.randrange(SIZE_MAX - 20000)
        os.pwrite(fd, what, offset)
        write_at(file, offset, what)

def append(side):
    p = some_file()
    if p is None or len(model[p].content) > SIZE_MAX - 20000:
        return
    what = data()
    fd = os.open(path(side, p), os.O_WRONLY | os.O_APPEND)
    os.write(fd, what)
    os.close(fd)
    model[p].content.extend(what)

appenders = {}

def append_held(side):
    p = some_file()
    if p is None or len(model[p].content) > SIZE_MAX - 20000:
        return
    file = model[p]
    key = (side, id(file))
    if key not in appenders:
        appenders[key] = (os.open(path(side, p), os.O_WRONLY | os.O_APPEND), file)
    what = data()
    os.write(appenders[key][0], what)
    file.content.extend(what)

def truncate(side):
    p = some_file()
    if p:
        file, size = model[p], dice.randrange(SIZE_MAX)
        os.truncate(path(side, p), size)
        del file.content[size:]
        file.content.extend(bytes(size - len(file.content)))

def punch(side):
    p = some_file()
    if p and len(model[p].content):
        file = model[p]
        start = dice.randrange(len(file.content))
        length = dice.randrange(1, 20000)
        subprocess.run(["fallocate", "-p", "-o", str(start), "-l", str(length), path(side, p)], check=True)
        end = min(len(file.content), start + length)
        file.content[start:end] = bytes(end - start)

def chmod(side):
    p = some_file()
    if p:
        model[p].mode = dice.choice([0o600, 0o640, 0o644, 0o755])
        os.chmod(path(side, p), model[p].mode)

def unlink(side):
    p = some_file()
    if p:
        os.unlink(path(side, p))
        model.pop(p).links -= 1

def rename(side):
    p = some_file()
    if p:
        to = os.path.join(dice.choice(sorted(dirs)), dice.choice(NAMES))
        if to in model and model[to] is model[p]:
            return
        os.rename(path(side, p), path(side, to))
        if to in model:
            model[to].links -= 1
        model[to] = model.pop(p)

def link(side):
    p = some_file()
    to = os.path.join(dice.choice(sorted(dirs)), dice.choice(NAMES))
    if p and to not in model:
        os.link(path(side, p), path(side, to))
        model[to] = model[p]
        model[p].links += 1

def directory(side):
    d = dice.choice(DIRS[1:])
    if d not in dirs:
        os.mkdir(path(side, d))
        dirs.add(d)
        return
    try:
        os.rmdir(path(side, d))
    except OSError as error:
        check(error.errno == errno.ENOTEMPTY and any(os.path.dirname(p) == d for p in model), "rmdir: %s" % error)
    else:
        check(not any(os.path.dirname(p) == d for p in model), "rmdir of what is not empty")
        dirs.remove(d)

def hold(side):
    p = some_file()
    if p is None:
        return
    if len(held) > 8:
        drop_held(dice.randrange(len(held)))
    fd = os.open(path(side, p), os.O_RDWR | (os.O_DIRECT if dice.randrange(8) == 0 else 0))
    # Aligned reads alone would be direct in full; these go through the server all the same.
    mapping = None
    if len(model[p].content) and dice.randrange(2):
        mapping = mmap.mmap(fd, 0)
        mapping[:]
    held.append((side, p, model[p], fd, mapping))

def store(side):
    own = [h for h in held if h[0] == side and h[4] is not None and len(h[4]) <= len(h[2].content)]
    if own:
        _, p, file, fd, mapping = dice.choice(own)
        what = data()[:len(mapping)]
        offset = dice.randrange(len(mapping) - len(what) + 1)
        mapping[offset:offset + len(what)] = what
        mapping.flush()
        write_at(file, offset, what)

OPS = [create] * 3 + [write] * 4 + [write_held] * 2 + [append] * 2 + [append_held] * 2 + [truncate] * 2
OPS += [punch, chmod, unlink, rename, rename, link, directory, hold, hold, store, store]

def go(count):
    global step
    for n in range(count):
        side = dice.randrange(len(sides))
        op = dice.choice(OPS)
        step = "%d %s on side %d" % (n, op.__name__, side)
        op(side)
        look_held()
        look(len(sides) - 1 - side)
        if dice.randrange(4) == 0:
            look(side)

# What the first mount caches until the second comes: names that are there and that are not,
# attributes, pages, and open files.
go(steps // 4)
subprocess.run(mount_second, check=True)
sides.append(dir_b)
look(1)
go(steps)
while held:
    drop_held(0)
for fd, _ in appenders.values():
    os.close(fd)
print("steps done")
