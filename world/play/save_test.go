package play_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// lossesOnce returns lines by which both hosts of a job are lost once an hour on average, for so
// many hours, and join a minute later.
func lossesOnce(seed uint64, hours float64) string {
	rng := rand.New(rand.NewPCG(seed, 7))
	var b strings.Builder
	for at := 3600 * rng.ExpFloat64(); at < 3600*hours; at += 60 + 3600*rng.ExpFloat64() {
		for _, host := range []string{"h1", "h2"} {
			fmt.Fprintf(&b, "at %.0fs lose %s\nat %.0fs join %s\n", at, host, at+60, host)
		}
	}
	return b.String()
}

// Where all hosts are lost once an hour, the policy is done sooner than with intervals that are
// some times as long or as short as Young's, and hardly later than with that, which it has to find.
func TestSavesByYoung(t *testing.T) {
	const hours = 12.0
	losses := lossesOnce(1, 2*hours)
	// play returns the hours that the training takes.
	play := func(who string) float64 {
		r := playText(t, fmt.Sprintf("hosts 2\ncompute 1s sd 2%%\ndata %d batch 8\ncosts save 5s "+
			"write 2s\ntarget 1 epoch\n%s\n%s", int(hours*3600)*8, who, losses))
		if r.Ended != "" || r.Progress < r.Target {
			t.Fatalf("%s: %s after %d steps", who, r.Ended, r.Steps)
		}
		return r.Seconds / 3600
	}
	policy := play("policy checkpoint")
	best := play("at step 1 set save=190")
	t.Logf("policy %.2f h, Young's interval %.2f h", policy, best)
	if policy > 1.03*best {
		t.Errorf("with the policy it takes %.4g h, with Young's interval %.4g h", policy, best)
	}
	for _, steps := range []int{20, 2000} {
		took := play(fmt.Sprintf("at step 1 set save=%d", steps))
		t.Logf("each %d steps: %.2f h", steps, took)
		if took < 1.03*policy {
			t.Errorf("each %d steps: %.4g h, with the policy %.4g h", steps, took, policy)
		}
	}
}
