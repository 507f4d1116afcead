package decide

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// parse returns the pods of a text: run.number and letters, r = it runs, d = it is being deleted,
// p = for long, e = it has ended, l = it lingers, and after = how.
func parse(t *testing.T, text string) (pods []Pod) {
	t.Helper()
	for _, word := range strings.Fields(text) {
		at, end, _ := strings.Cut(word, "=")
		at, letters, _ := strings.Cut(at, ":")
		p := Pod{Name: at, End: End(end), Why: "it crashed"}
		if _, err := fmt.Sscanf(at, "%d.%d", &p.Run, &p.Number); err != nil {
			t.Fatal(err)
		}
		p.Running, p.Deleting = strings.Contains(letters, "r"), strings.Contains(letters, "d")
		p.Patient = strings.Contains(letters, "p")
		p.Ended, p.Lingers = strings.Contains(letters, "e"), strings.Contains(letters, "l")
		pods = append(pods, p)
	}
	return pods
}

// TestClockPutBack has the clock of the operator, or another operator's, be a day behind the one by
// which a pod has crashed: the next pod comes as late as it would, and not a day later.
func TestClockPutBack(t *testing.T) {
	v := View{Replicas: 2, Now: 1000, State: State{Phase: Running, Run: 1, Begun: true, Next: 2,
		Members: []Member{{0, true}, {1, true}}, Crashes: 2, LastCrash: 87_400},
		Pods: []Pod{{Run: 1, Running: true}}}
	for ; v.Now < 1010; v.Now++ {
		d := Next(v)
		if len(d.Create) > 0 {
			t.Errorf("a pod is made after %d s", v.Now-1000)
		}
		v.State = d.State
	}
	if d := Next(v); len(d.Create) != 1 {
		t.Errorf("after 10 s: %+v", d)
	}
}

// TestNext compares decisions with what they should be, in a short form: phase, members, what is
// created, deleted and asked for, and the reasons of the events.
func TestNext(t *testing.T) {
	running := func(run, next int, members ...Member) State {
		return State{Phase: Running, Run: run, Begun: true, Next: next, Members: members}
	}
	crashed := func(crashes int, last, now int64) View {
		s := running(1, 2, Member{0, true}, Member{1, true})
		s.Crashes, s.LastCrash = crashes, last
		return View{Replicas: 2, Now: now, State: s}
	}
	for _, c := range []struct {
		name string
		view View
		pods string
		want string
	}{
		{"new", View{Replicas: 2}, "", "Starting run 1 members 0? create 0 [Started]"},
		{"new and suspended", View{Replicas: 2, Suspend: true}, "", "Parked run 0 [Suspended]"},
		{"the first pod alone until it was seen", View{Replicas: 2,
			State: State{Phase: Starting, Run: 1, Next: 1, Members: []Member{{}}}}, "",
			"Starting run 1 members 0? create 0"},
		{"then the others", View{Replicas: 3,
			State: State{Phase: Starting, Run: 1, Next: 1, Members: []Member{{}}}}, "1.0:r",
			"Running run 1 members 0 1? 2? create 1 2"},
		{"grows", View{Replicas: 3, State: running(1, 2, Member{0, true}, Member{1, true})},
			"1.0:r 1.1:r", "Running run 1 members 0 1 2? create 2"},
		{"shrinks by who has not started", View{Replicas: 2,
			State: running(1, 3, Member{0, true}, Member{1, true}, Member{2, true})},
			"1.0:r 1.1 1.2:r", "Running run 1 members 0 2 delete 1.1 [Smaller]"},
		{"the first pod is gone: no other begins the job", View{Replicas: 2,
			State: running(1, 2, Member{0, true}, Member{1, true})}, "1.1:r",
			"Running run 1 members 1 2? create 2 [!PodGone]"},
		{"what is being deleted counts until it is gone", View{Replicas: 2,
			State: running(1, 2, Member{0, true}, Member{1, true})}, "1.0:r 1.1:rd",
			"Running run 1 members 0"},
		{"a pod seen late", View{Replicas: 1, State: running(1, 3, Member{0, true})},
			"1.0:r 1.2:r", "Running run 1 members 0 delete 1.2"},
		{"the job is over, and another pod says how", View{Replicas: 2,
			State: running(1, 2, Member{0, true}, Member{1, true})}, "1.0:r 1.1:e=over",
			"Running run 1 members 0"},
		{"who says so stays though it lingers", View{Replicas: 2,
			State: running(1, 2, Member{0, true}, Member{1, true})}, "1.0:r 1.1:rel=over",
			"Running run 1 members 0"},
		{"unless nobody is left to say how", View{Replicas: 2,
			State: running(1, 2, Member{0, true}, Member{1, true})}, "1.0:e 1.1:rel=over",
			"Running run 1 delete 1.1 [!PodEnded]"},
		{"what lingers counts until it is gone", View{Replicas: 2,
			State: running(1, 2, Member{0, true}, Member{1, true})}, "1.0:r 1.1:rel=left",
			"Running run 1 members 0 delete 1.1 [PodLeft]"},
		{"parked by pods that linger", View{Replicas: 1, Suspend: true,
			State: running(1, 1, Member{0, true})}, "1.0:rel=parked",
			"Parked run 1 delete 1.0 [Parked]"},
		{"failed in a pod that lingers", View{Replicas: 1, State: running(1, 1, Member{0, true})},
			"1.0:rel=failed", "Failed run 1 delete 1.0 [!Failed]"},
		{"done", View{Replicas: 2, State: running(1, 2, Member{0, true}, Member{1, true})},
			"1.0:re=finished 1.1:r", "Succeeded run 1 delete 1.1 [Succeeded]"},
		{"failed", View{Replicas: 1, State: running(1, 1, Member{0, true})}, "1.0:re=failed",
			"Failed run 1 [!Failed]"},
		{"failed, and begun again", View{Replicas: 2, Retries: 1,
			State: running(1, 2, Member{0, true}, Member{1, true})}, "1.0:re=failed 1.1:r",
			"Starting run 2 members 0? delete 1.1 [!Retried]"},
		{"failed once more", View{Replicas: 1, Retries: 1, State: State{Phase: Running, Run: 2,
			Begun: true, Retries: 1, Next: 1, Members: []Member{{0, true}}}}, "2.0:re=failed",
			"Failed run 2 [!Failed]"},
		{"failed while it was parked: it is begun again later", View{Replicas: 2, Retries: 1,
			Suspend: true, State: running(1, 2, Member{0, true}, Member{1, true})},
			"1.0:re=failed 1.1:r", "Parked run 1 delete 1.1 [!Retried]"},
		{"stopped, which nobody wants again", View{Replicas: 1, Retries: 1,
			State: running(1, 1, Member{0, true})}, "1.0:re=stopped", "Failed run 1 [!Failed]"},
		{"who ends by itself is replaced at once", crashed(0, 0, 1000), "1.0:r 1.1:e",
			"Running run 1 members 0 2? create 2 [!PodEnded]"},
		{"the second time later", crashed(1, 990, 1000), "1.0:r 1.1:e",
			"Running run 1 members 0 2? later 10 [!PodEnded]"},
		{"the third time later still", crashed(2, 990, 1000), "1.0:r 1.1:e",
			"Running run 1 members 0 2? later 20 [!PodEnded]"},
		{"ten times, and never later than that", crashed(10, 699, 1000), "1.0:r 1.1:e",
			"Running run 1 members 0 2? later 300 [!PodEnded]"},
		{"not after a calm time", crashed(10, 100, 1000), "1.0:r 1.1:e",
			"Running run 1 members 0 2? create 2 [!PodEnded]"},
		{"a clock that was put back", crashed(2, 99999, 1000), "1.0:r 1.1:r",
			"Running run 1 members 0 1"},
		{"it delays no more than it would", crashed(2, 99999, 1000), "1.0:r",
			"Running run 1 members 0 2? later 10 [!PodGone]"},
		{"a run that ends by itself begins again later", View{Replicas: 1, Now: 1000,
			State: State{Phase: Running, Run: 2, Begun: true, Fruitless: 1, Next: 1, Crashes: 1,
				LastCrash: 990, Members: []Member{{0, true}}}}, "2.0:e",
			"Starting run 3 members 0? later 10 [!PodEnded !Restarted]"},
		{"and then it does", View{Replicas: 1, Now: 1010, State: State{Phase: Starting, Run: 3,
			Next: 1, Crashes: 2, LastCrash: 1000, Members: []Member{{}}}}, "2.0:e",
			"Starting run 3 members 0? create 0"},
		{"a pod that runs and is gone before it was seen", View{Replicas: 2,
			State: running(1, 2, Member{0, true}, Member{Number: 1})}, "1.0:r",
			"Running run 1 members 0 1? create 1"},
		{"suspended", View{Replicas: 1, Suspend: true, State: running(1, 1, Member{0, true}),
			Live: Live{Answers: true}}, "1.0:r", "Parking run 1 members 0 park [Parking]"},
		{"suspended before it runs", View{Replicas: 1, Suspend: true,
			State: running(1, 1, Member{0, true})}, "1.0",
			"Parking run 1 members 0 delete 1.0 [Parking]"},
		{"parked", View{Replicas: 1, Suspend: true, State: running(1, 1, Member{0, true})},
			"1.0:re=parked", "Parked run 1 [Parked]"},
		{"resumed", View{Replicas: 1, State: State{Phase: Parked, Run: 1}}, "1.0:re=parked",
			"Starting run 2 members 0? create 0 delete 1.0 [Resumed]"},
		{"resumed when the pods of before are gone", View{Replicas: 1,
			State: State{Phase: Parked, Run: 1}}, "1.0:rd", "Parked run 1"},
		{"all pods lost", View{Replicas: 1, State: running(1, 1, Member{0, true})}, "",
			"Starting run 2 members 0? create 0 [!PodGone !Restarted]"},
		{"lost too often without a step", View{Replicas: 1, State: State{Phase: Running, Run: 5,
			Begun: true, Fruitless: 4, Next: 1, Members: []Member{{0, true}}}}, "5.0:e",
			"Failed run 5 [!PodEnded !Failed]"},
		{"and who waits for a job to join ends, too", View{Replicas: 2, Live: Live{Waiting: true},
			State: State{Phase: Running, Run: 5, Begun: true, Fruitless: 4, Next: 2,
				Members: []Member{{0, true}, {1, true}}}}, "5.0:e 5.1:r",
			"Failed run 5 delete 5.1 [!PodEnded !Failed]"},
		{"deleted", View{Replicas: 1, Deleted: true, State: running(1, 1, Member{0, true})},
			"1.0:r", "Running run 1 members 0 delete 1.0"},
		{"deleted, and a pod was to leave at the end of its step", View{Replicas: 1, Deleted: true,
			State: running(1, 1, Member{0, true})}, "1.0:rdp 1.1:rd",
			"Running run 1 members 0 delete 1.0"},
		{"deleted and gone", View{Replicas: 1, Deleted: true, State: running(1, 1)}, "",
			"Running run 1 release"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.view.Pods = parse(t, c.pods)
			if got := show(Next(c.view)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// show returns a decision in the short form of TestNext.
func show(d Decision) string {
	words := []string{string(d.State.Phase), "run", strconv.Itoa(d.State.Run)}
	list := func(name string, of []string) {
		if len(of) > 0 {
			words = append(append(words, name), of...)
		}
	}
	var members, created, events []string
	for _, m := range d.State.Members {
		mark := "?"
		if m.Seen {
			mark = ""
		}
		members = append(members, strconv.Itoa(m.Number)+mark)
	}
	for _, m := range d.Create {
		created = append(created, strconv.Itoa(m.Number))
	}
	for _, e := range d.Events {
		mark := ""
		if e.Warning {
			mark = "!"
		}
		events = append(events, mark+e.Reason)
	}
	list("members", members)
	list("create", created)
	list("delete", d.Delete)
	if d.Later > 0 {
		words = append(words, "later", strconv.FormatInt(d.Later, 10))
	}
	if d.Park {
		words = append(words, "park")
	}
	if d.Release {
		words = append(words, "release")
	}
	if since := d.State.PausedSince; since > 0 {
		words = append(words, "since", strconv.FormatInt(since, 10))
	}
	if len(events) > 0 {
		words = append(words, "["+strings.Join(events, " ")+"]")
	}
	return strings.Join(words, " ")
}

// TestParkedIsNotFruitless begins a job again that was parked before its first step, as where a
// queue has taken its pods: that run does not count as one that has ended without a step.
func TestParkedIsNotFruitless(t *testing.T) {
	d := Next(View{Replicas: 1, State: State{Phase: Parked, Run: 5, Begun: true, Fruitless: 3}})
	if d.State.Run != 6 || d.State.Fruitless != 3 {
		t.Errorf("run %d begins after %d without a step, not 3", d.State.Run, d.State.Fruitless)
	}
}
