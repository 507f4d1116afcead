package launcher

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
)

// What a reporter writes where: the ledger has the end of every wait, also when the job is over,
// and the terminal nothing of a job that has just begun.
func TestWhatIsNews(t *testing.T) {
	for _, c := range []struct {
		name        string
		event       agent.Event
		over        bool
		stopping    int
		heard, news int
	}{
		{"the first generation",
			agent.Event{What: "generation", Generation: 5, Joined: []int{0, 1}, First: true}, false,
			-1,
			1, 0},
		{"another one", agent.Event{What: "generation", Generation: 6, Lost: []int{1}}, false, -1,
			1, 1},
		{"another one of a job that is over",
			agent.Event{What: "generation", Generation: 6, Lost: []int{1}}, true, -1, 0, 0},
		{"another one, since the launcher ends the workers",
			agent.Event{What: "generation", Generation: 6, Lost: []int{1}}, false, 0, 1, 0},
		{"a wait", agent.Event{What: "wait"}, false, -1, 1, 1},
		{"its end", agent.Event{What: "waited"}, false, -1, 1, 1},
		{"what a user's policy says", agent.Event{What: "policy", Step: 1,
			Because: "it failed:\nshoal: \x1b[2J"}, false, -1, 1, 1},
		{"its end, of a job that is over", agent.Event{What: "waited"}, true, -1, 1, 0},
	} {
		dir, _, err := newRunDir(t.TempDir(), "x")
		if err != nil {
			t.Fatal(err)
		}
		heard := 0
		r := newReporter(nil, func(agent.Event) { heard++ })
		r.setRun("x", dir)
		if r.stopping = c.stopping >= 0; c.over {
			r.setJobOver()
		}
		r.reportEvent(c.event)
		if heard != c.heard || len(r.lines) != c.news {
			t.Errorf("%s: heard %d times, news %q", c.name, heard, r.lines)
		}
		if strings.ContainsAny(strings.Join(r.lines, ""), "\n\x1b") {
			t.Errorf("%s: the terminal obeys %q", c.name, r.lines)
		}
		if err := dir.close(); err != nil {
			t.Fatal(err)
		}
	}
}
