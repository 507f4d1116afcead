package member_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

var rewrite = flag.Bool("rewrite", false, "write the outputs of the scenarios anew; read the diff")

// A scenario is a text of commands; under each stand the decisions that it led to, indented.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(string(b))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(b), got); diff != "" && !*rewrite {
				t.Errorf("run with -rewrite and read the diff:\n%s", diff)
			}
		})
	}
}

func play(script string) string {
	var (
		out strings.Builder
		m   *member.Machine
	)
	for in := bufio.NewScanner(strings.NewReader(script)); in.Scan(); {
		line := in.Text()
		if strings.HasPrefix(line, "  ") {
			continue // the output of an earlier run
		}
		fmt.Fprintln(&out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m = perform(&out, m, strings.Fields(line))
		for list := m.Ready(); len(list) > 0; list = m.Ready() {
			for _, a := range list {
				if p, ok := a.(member.Propose); ok {
					m.Decided(p.Record.View.Generation)
				} else {
					fmt.Fprintf(&out, "  %s\n", describe(a))
				}
			}
		}
	}
	return out.String()
}

func perform(out *strings.Builder, m *member.Machine, words []string) *member.Machine {
	number := func(prefix string) (n int) {
		for _, w := range words[1:] {
			if rest, ok := strings.CutPrefix(w, prefix); ok {
				fmt.Sscan(rest, &n)
			}
		}
		return n
	}
	w := topo.Worker(number("w"))
	switch words[0] {
	case "job":
		return member.New(member.Config{Want: number("want="), Min: number("min="), Max: number("max=")})
	case "started":
		m.Started(w, words[2])
	case "asks":
		m.Asks(w)
	case "lost":
		m.Lost(w, strings.Join(words[2:], " "))
	case "finished":
		m.Finished(w)
	case "resize":
		if err := m.Resize(number("to="), "you"); err != nil {
			fmt.Fprintf(out, "  error: %v\n", err)
		}
	case "boundary":
		m.Boundary()
	case "step":
		m.Step()
	default:
		fmt.Fprintf(out, "  error: no command %q\n", words[0])
	}
	return m
}

func describe(a member.Action) string {
	switch a := a.(type) {
	case member.Start:
		return fmt.Sprintf("start %d: %s", a.Count, a.Because)
	case member.Stop:
		return fmt.Sprintf("stop w%d: %s", a.Worker, a.Because)
	case member.Activate:
		s := a.View.String()
		for _, part := range []struct {
			name string
			list []topo.Worker
		}{{"joined", a.Joined}, {"lost", a.Lost}, {"finished", a.Finished}, {"released", a.Released}, {"again", a.Again}} {
			if len(part.list) > 0 {
				s += fmt.Sprintf(", %s %v", part.name, part.list)
			}
		}
		return fmt.Sprintf("%s: %s", s, a.Because)
	case member.Pause:
		return fmt.Sprintf("pause: %s", a.Because)
	case member.Resume:
		return fmt.Sprintf("resume: %s", a.Because)
	case member.Finish:
		return fmt.Sprintf("finish ok=%v: %s", a.OK, a.Because)
	}
	return fmt.Sprintf("%T", a)
}

// Whatever happens to workers in whatever order: generations count up by one, hold only living workers that asked, change between
// steps except by loss and by finishing, never exceed the wanted size when they grow, and the job ends when nobody is left.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := member.Config{Want: rapid.IntRange(1, 5).Draw(t, "want"), Min: rapid.IntRange(0, 3).Draw(t, "min")}
		m := member.New(cfg)
		var (
			next     topo.Worker
			alive    = map[topo.Worker]bool{} // true = has asked
			ordered  int
			last     topo.View
			boundary = true
			over     bool
		)
		deal := func() {
			for list := m.Ready(); len(list) > 0; list = m.Ready() {
				for _, a := range list {
					switch a := a.(type) {
					case member.Start:
						ordered += a.Count
					case member.Propose:
						m.Decided(a.Record.View.Generation)
					case member.Activate:
						checkActivate(t, last, a, alive, boundary, m.Want())
						last = a.View
					case member.Finish:
						over = true
					}
				}
			}
		}
		deal()
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			w := topo.Worker(rapid.Uint64Range(0, uint64(next)).Draw(t, "w"))
			_, lives := alive[w]
			switch what := rapid.IntRange(0, 6).Draw(t, "what"); {
			case what == 0 && ordered > 0:
				ordered--
				alive[next] = false
				m.Started(next, "here")
				next++
			case what == 1 && lives:
				alive[w] = true
				m.Asks(w)
			case what == 2 && lives:
				delete(alive, w)
				m.Lost(w, "was killed")
			case what == 3 && lives:
				delete(alive, w)
				m.Finished(w)
			case what == 4:
				_ = m.Resize(rapid.IntRange(0, 6).Draw(t, "n"), "the test")
			case what == 5:
				boundary = true
				m.Boundary()
			default:
				boundary = false
				m.Step()
			}
			deal()
		}
		members := 0
		for _, x := range m.View().Members {
			if _, ok := alive[x.Worker]; ok {
				members++
			}
		}
		if last.Generation > 0 && members == 0 && !over {
			t.Fatalf("nobody is left of %v, and the job is not over", last)
		}
	})
}

func checkActivate(t *rapid.T, last topo.View, a member.Activate, alive map[topo.Worker]bool, boundary bool, want int) {
	if a.View.Generation != last.Generation+1 {
		t.Fatalf("generation %d follows %d", a.View.Generation, last.Generation)
	}
	if !boundary && len(a.Joined)+len(a.Released) > 0 {
		t.Fatalf("%v changed in the middle of a step: %+v", last, a)
	}
	if len(a.Joined) > 0 && a.View.Size() > want {
		t.Fatalf("grew to %d, wanted %d", a.View.Size(), want)
	}
	for _, x := range a.View.Members {
		if !alive[x.Worker] {
			t.Fatalf("w%d is a member of %v, but is gone or never asked", x.Worker, a.View)
		}
		if _, before := last.Rank(x.Worker); !before && !slices.Contains(a.Joined, x.Worker) {
			t.Fatalf("w%d is new in %v, and not among the joined", x.Worker, a.View)
		}
	}
}
