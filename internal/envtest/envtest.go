// Package envtest gives tests the numbers that the environment has for them: the seed of random
// cases, and how many of them to try. Its functions run on the goroutine of the test, and fail it
// if a variable has a text that is no number.
package envtest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Number returns the number in a variable of the environment, or else the other one.
func Number(t testing.TB, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: it is no whole number", name, text)
	}
	return n
}

// Seed returns SEED of the environment, or else a seed that no run had before, and prints it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := Number(t, "SEED", uint64(time.Now().UnixNano()))
	t.Logf("SEED=%d", seed)
	return seed
}

// Slices returns SLICES of the environment: this run is to try one of so many parts of what a test
// searches. It is 1, which is all, if the environment says nothing.
func Slices(t testing.TB) uint64 {
	t.Helper()
	return max(Number(t, "SLICES", 1), 1)
}

// Places returns a function that chooses some places in so many bytes, the first byte always: count
// of them or a few less or more, or as many of these as Slices leaves. They are the caller's, and
// Seed chooses them.
func Places(t testing.TB) func(length, count int) []int {
	t.Helper()
	r, parts := rand.New(rand.NewPCG(Seed(t), 4)), int(Slices(t))
	return func(length, count int) (places []int) {
		mean := parts * (1 + length/count)
		for at := 0; at < length; at += 1 + r.IntN(2*mean-1) {
			places = append(places, at)
		}
		return places
	}
}
