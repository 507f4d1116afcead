package jobs

import (
	"strings"
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

// An end is compared with what was expected of the last change that came.
func TestOverText(t *testing.T) {
	came := pool.Change{Done: 1, Expected: pool.Expectation{End: 7e6, Low: 6e6, High: 8e6}}
	refused := pool.Change{Outcome: "refused: it has a mesh",
		Expected: pool.Expectation{End: 4e6, Low: 3e6, High: 5e6}}
	v := pool.JobView{State: pool.Ended, Because: "ended", Changes: []pool.Change{refused}}
	if got := overText(v); got != "it has ended" {
		t.Errorf("without a change that came: %q", got)
	}
	v.Changes = []pool.Change{came, refused}
	want := "; expected between " + timeText(6e6, v) + " and " + timeText(8e6, v)
	if got := overText(v); !strings.HasSuffix(got, want) {
		t.Errorf("%q, not with %q", got, want)
	}
}
