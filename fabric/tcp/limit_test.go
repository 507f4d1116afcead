package tcp

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
)

// However late and in whichever sizes bytes are sent, in any time no more passes than the rate, the
// credit of a bucket that was not used, and the piece that is paid for afterwards; and somebody who
// always waits just as long as told loses nothing.
func TestBucket(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const rate, largest = 1e6, 50_000
	var b bucket
	if wait, _ := b.spend(1<<30, 0); wait != 0 {
		t.Fatalf("without a limit it waits %v", wait)
	}
	b.set(rate)
	start := b.at
	now, passed := start, 0
	for range 10000 {
		n := rng.IntN(largest) + 1
		wait, _ := b.spend(n, now)
		if wait > 0 {
			now += wait
			if rng.IntN(10) == 0 {
				now += time.Duration(rng.IntN(int(2 * bucketTime)))
			}
			continue
		}
		passed += n
		if most := rate*((now-start)+bucketTime).Seconds() + largest; float64(passed) > most {
			t.Fatalf("%d bytes have passed after %v", passed, now-start)
		}
	}
	b.set(2 * rate)
	start, passed = b.at, 0
	for now = start; passed < 10*rate; {
		wait, changed := b.spend(1000, now)
		if wait == 0 {
			passed += 1000
		} else if now += wait; changed == nil {
			t.Fatal("nothing tells when the rate changes")
		}
	}
	if least := 2 * rate * (now - start).Seconds(); float64(passed) < least*0.999 {
		t.Errorf("who waits as told sends %d in %v", passed, now-start)
	}
}

// What is charged is paid for before anything else is taken, also where it was charged many times.
func TestBucketCharge(t *testing.T) {
	var b bucket
	b.charge(5, 0)
	if wait, _ := b.spend(1, 0); wait != 0 {
		t.Errorf("without a limit it waits %v", wait)
	}
	b.set(1000)
	now := b.at + time.Hour // so that the bucket is full
	for range 3 {
		b.charge(100, now)
	}
	want := 300*time.Millisecond - bucketTime
	if wait, _ := b.spend(0, now); wait != want {
		t.Errorf("it waits %v for what was charged, want %v", wait, want)
	}
	if wait, _ := b.spend(0, now+want); wait != 0 {
		t.Errorf("it waits %v more", wait)
	}
}

// Who waits is woken when the rate changes, and when the link ends.
func TestBucketWakes(t *testing.T) {
	var b bucket
	b.set(1e-3)
	b.spend(1, sinceStart()) // the next one waits for a thousand seconds
	_, changed := b.spend(1, sinceStart())
	if changed == nil {
		t.Fatal("the next one does not wait")
	}
	ended, told, g := make(chan struct{}), make(chan bool), group.New(t.Context())
	wait := func(context.Context) error { told <- b.wait(1, ended); return nil }
	g.Go("waits", wait)
	b.set(0)
	<-changed
	if !<-told {
		t.Error("the link is said to have ended")
	}
	b.set(1e-3)
	b.spend(1, sinceStart())
	g.Go("waits", wait)
	close(ended)
	if <-told {
		t.Error("who waits may send on a link that has ended")
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
