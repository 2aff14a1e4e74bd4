# The two commands of a newcomer. Both install what is missing through the system's package manager, and say so.
SHELL := /bin/bash
.PHONY: all setup demo test build static install clean

all: build

setup:
	@scripts/setup.sh

build: setup
	@scripts/cargo.sh build --release -p cowshed

static: setup
	@scripts/static.sh

demo: setup
	@scripts/demo.sh

test: setup
	@scripts/cargo.sh xtask ci

install: build
	@scripts/install.sh

clean:
	@scripts/cargo.sh clean
