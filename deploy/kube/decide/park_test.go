package decide

import (
	"strings"
	"testing"
)

// TestPark has a job of two pods parked.
func TestPark(t *testing.T) {
	for _, c := range []struct {
		name    string
		live    Live
		limited bool
		pods    string
		want    string
	}{
		{"it trains", Live{Answers: true}, false, "1.0:r 1.1:r",
			"Parking run 1 members 0 1 park [Parking]"},
		{"it is gone, and who is left waits for one to join", Live{Waiting: true}, false,
			"1.0:e 1.1:r", "Parking run 1 members 0 1 delete 1.1 [Parking]"},
		{"it is about to begin, and the other pod waits for that", Live{}, false, "1.0:r 1.1:r",
			"Parking run 1 members 0 1 [Parking]"},
		{"it has not begun, since it waits for the other pod", Live{Answers: true, Early: true},
			false, "1.0:r 1.1", "Parking run 1 members 0 1 delete 1.0 1.1 [Parking]"},
		{"it is paused, and may have the pod that it lacks", Live{Answers: true, Paused: true},
			false, "1.0:r", "Parking run 1 members 0 2? create 2 park [Parking !PodGone]"},
		{"it is paused, and may not", Live{Answers: true, Paused: true}, true, "1.0:r",
			"Parking run 1 members 0 1 park since 1000 [Parking]"},
		{"it is paused, and its step is to end", Live{Answers: true, Paused: true,
			ParkedBy: "the operator"}, true, "1.0:r", "Parking run 1 members 0 1 [Parking]"},
		{"it is paused on a mesh, and gets the pod that it lacks", Live{Answers: true, Paused: true,
			Mesh: true}, false, "1.0:r",
			"Parking run 1 members 0 2? create 2 [Parking !PodGone]"},
		{"it is paused on a mesh, and may have none", Live{Answers: true, Paused: true, Mesh: true},
			true, "1.0:r", "Parking run 1 members 0 1 since 1000 [Parking Paused]"},
		{"it was to be parked when it was paused on a mesh", Live{Answers: true, Paused: true,
			Mesh: true, ParkedBy: "the operator"}, true, "1.0:r",
			"Parking run 1 members 0 1 since 1000 [Parking Paused]"},
		{"it is stuck, and may have none", Live{Answers: true, Stuck: true}, true, "1.1:r",
			"Parking run 1 members 0 1 since 1000 [Parking Stuck]"},
		{"it is stuck, and people want it to have none", Live{Answers: true, Stuck: true}, false,
			"1.1:r", "Parking run 1 members 0 1 since 1000 [Parking Stuck]"},
		{"it is parked, and its workers end", Live{Answers: true, Paused: true, Mesh: true,
			Parked: true}, true, "1.0:r", "Parking run 1 members 0 1 [Parking]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := View{Replicas: 2, Suspend: true, Limited: c.limited, Live: c.live, Now: 1000,
				Grace: 120, Pods: parse(t, c.pods),
				State: State{Phase: Running, Run: 1, Begun: true, Next: 2,
					Members: []Member{{0, true}, {1, true}}}}
			if got := show(Next(v)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestStand has a job be paused that is to have no pods: only when it has been for as long as pods
// get to leave they are deleted, and what that costs is said once.
func TestStand(t *testing.T) {
	stands := Live{Answers: true, Paused: true, Mesh: true, Steps: 7}
	trains := Live{Answers: true, Mesh: true, Steps: 7}
	state := State{Phase: Parking, Run: 1, Begun: true, Trained: true, Next: 2,
		Members: []Member{{0, true}, {1, true}}}
	for i, x := range []struct {
		now  int64
		live Live
		pods string
		want string
	}{
		{1000, stands, "1.0:r 1.1", "Parking run 1 members 0 1 since 1000 [Paused]"},
		{1119, stands, "1.0:r 1.1", "Parking run 1 members 0 1 since 1000"},
		{1120, trains, "1.0:r 1.1:r", "Parking run 1 members 0 1 park"},
		{1125, stands, "1.0:r 1.1:r", "Parking run 1 members 0 1 since 1125 [Paused]"},
		{1130, Live{}, "1.0:r 1.1:r", "Parking run 1 members 0 1"},
		{1140, stands, "1.0:r 1.1:r", "Parking run 1 members 0 1 since 1140 [Paused]"},
		{1100, stands, "1.0:r 1.1:r", "Parking run 1 members 0 1 since 1100"}, // a clock put back
		{1220, stands, "1.0:r 1.1:r", "Parking run 1 members 0 1 delete 1.0 1.1 since 1100 " +
			"[!StepsLost]"},
		{1225, stands, "1.0:rd 1.1:rd", "Parking run 1 members 0 1 since 1100"},
		{1230, Live{}, "1.0:rd", "Parking run 1 members 0 1"},
		{1235, Live{}, "", "Parked run 1 [Parked]"},
	} {
		d := Next(View{Replicas: 2, Suspend: true, Because: "for another job", Limited: true,
			Now: x.now, Grace: 120, Live: x.live, State: state, Pods: parse(t, x.pods)})
		if got := show(d); got != x.want {
			t.Errorf("%d:\ngot  %s\nwant %s", i, got, x.want)
		}
		state = d.State
		for _, e := range d.Events {
			if strings.Contains(e.Text, "lost") != (e.Reason != "Parking") {
				t.Errorf("%d: %+v", i, e)
			}
		}
	}
}

// TestParkFails has a job be parked that makes no checkpoint: people read why, each time once, and
// it is asked again after a pause that grows. What came of an earlier wish to park it is no news.
func TestParkFails(t *testing.T) {
	full := Live{Answers: true, ParkError: "the disk is full"}
	asked := Live{Answers: true, ParkedBy: "the operator"}
	v := View{Replicas: 2, Suspend: true, Grace: 120,
		State: State{Phase: Running, Run: 1, Begun: true, Next: 2,
			Members: []Member{{0, true}, {1, true}}}}
	for i, x := range []struct {
		now  int64
		live Live
		want string
	}{
		{1000, full, "Parking run 1 members 0 1 park [Parking]"},
		{1005, asked, "Parking run 1 members 0 1"},
		{1010, full, "Parking run 1 members 0 1 [!ParkRefused]"},
		{1015, full, "Parking run 1 members 0 1"},
		{1020, full, "Parking run 1 members 0 1 park"},
		{1025, full, "Parking run 1 members 0 1 [!ParkRefused]"},
		{1044, full, "Parking run 1 members 0 1"},
		{1045, full, "Parking run 1 members 0 1 park"},
		{1050, Live{Answers: true}, "Parking run 1 members 0 1 park"}, // another host leads
		{5000, full, "Parking run 1 members 0 1 [!ParkRefused]"},
		{1000, full, "Parking run 1 members 0 1"}, // a clock put back
		{1300, full, "Parking run 1 members 0 1 park"},
	} {
		v.Now, v.Live, v.Pods = x.now, x.live, parse(t, "1.0:r 1.1:r")
		d := Next(v)
		if got := show(d); got != x.want {
			t.Errorf("%d: got  %s\nwant %s", i, got, x.want)
		}
		for _, e := range d.Events {
			if e.Reason == ParkRefused && !strings.Contains(e.Text, "the disk is full") {
				t.Errorf("%d: %+v", i, e)
			}
		}
		v.State = d.State
	}
	if v.State.ParkFailures != 3 {
		t.Errorf("it could not be parked %d times", v.State.ParkFailures)
	}
	v.State.Phase = Running
	if d := Next(v); !d.Park || d.State.ParkFailures != 0 {
		t.Errorf("a new wish to park it: %s after %d", show(d), d.State.ParkFailures)
	}
}

// TestPausedParkFails has a paused job make its checkpoint in vain for longer than its pods get to
// leave: it does not stand, and no step of it is lost.
func TestPausedParkFails(t *testing.T) {
	v := View{Replicas: 2, Suspend: true, Limited: true, Grace: 120, Pods: parse(t, "1.0:r"),
		Live:  Live{Answers: true, Paused: true, ParkError: "the disk is full"},
		State: State{Phase: Parking, Run: 1, Begun: true, Next: 2, Members: []Member{{0, true}}}}
	for now := int64(1000); now < 3000; now += 5 {
		v.Now = now
		d := Next(v)
		if len(d.Delete) > 0 {
			t.Fatalf("at %d: %s", now, show(d))
		}
		v.State = d.State
	}
}
