package jobs

import (
	"testing"

	"github.com/shoal-ml/shoal/pool"
)

// What a limit was to bring is said with what it has brought, as far as that is known.
func TestShareText(t *testing.T) {
	const begin = "a limit of what its hosts send: steps of 535 ms expected, 580 ms before"
	for _, c := range []struct {
		share pool.Share
		want  string
	}{
		{pool.Share{Limit: 9, Expected: 0.535, Before: 0.58}, begin},
		{pool.Share{Limit: 9, Expected: 0.535, Before: 0.58, Measured: 0.541},
			begin + ", 541 ms with it"},
		{pool.Share{Expected: 0.535, Before: 0.58, Measured: 0.6, Because: "it brought nothing"},
			begin + ", 600 ms with it; it has ended: it brought nothing"},
	} {
		if got := shareText(&c.share); got != c.want {
			t.Errorf("%+v: %q, want %q", c.share, got, c.want)
		}
	}
}
