package lanes

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/internal/group"
)

// A thread keeps off one processor at a time, and runs somewhere where there is but one.
func TestAThreadShunsAProcessor(t *testing.T) {
	g := group.New(context.Background())
	g.Go("thread", func(context.Context) error {
		own := lockThread()
		where := func() (set unix.CPUSet) {
			if err := unix.SchedGetaffinity(own.id, &set); err != nil {
				t.Error(err)
			}
			return set
		}
		for range 2 {
			for cpu := range len(own.may) * 64 {
				if !own.may.IsSet(cpu) {
					continue
				}
				own.avoidProcessor(cpu)
				set, want := where(), own.may
				if want.Count() > 1 {
					want.Clear(cpu)
				}
				if set != want {
					t.Errorf("off processor %d it runs on %v, want %v", cpu, set, want)
				}
				if here := currentProcessor(); !want.IsSet(here) {
					t.Errorf("off processor %d it runs on %d", cpu, here)
				}
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
