package decide

import "testing"

// TestFrozen compares decisions of a job whose spec is wrong: no pod is made and no size is set,
// and all that happens is taken in.
func TestFrozen(t *testing.T) {
	two := State{Phase: Running, Run: 1, Begun: true, Next: 2,
		Members: []Member{{0, true}, {1, true}}}
	first := State{Phase: Starting, Run: 1, Next: 1, Members: []Member{{}}}
	for _, c := range []struct {
		name string
		view View
		pods string
		want string
	}{
		{"new", View{Replicas: 2}, "", " run 0"},
		{"new and suspended", View{Replicas: 2, Suspend: true}, "", " run 0"},
		{"what runs goes on", View{Replicas: 2, State: two}, "1.0:r 1.1:r",
			"Running run 1 members 0 1"},
		{"who crashes is not replaced", View{Replicas: 2, State: two}, "1.0:r 1.1:e",
			"Running run 1 members 0 [!PodEnded]"},
		{"nor who is gone", View{Replicas: 2, State: two}, "1.0:r",
			"Running run 1 members 0 [!PodGone]"},
		{"what others take goes", View{Replicas: 1, Because: "quota", State: two}, "1.0:r 1.1:r",
			"Running run 1 members 0 delete 1.1 [Smaller]"},
		{"done", View{Replicas: 2, State: two}, "1.0:re=finished 1.1:r",
			"Succeeded run 1 delete 1.1 [Succeeded]"},
		{"suspended", View{Replicas: 2, Suspend: true, State: two, Live: Live{Answers: true}},
			"1.0:r 1.1:r", "Parking run 1 members 0 1 park [Parking]"},
		{"parked", View{Replicas: 2, Suspend: true, State: two}, "1.0:re=parked 1.1:re=over",
			"Parked run 1 [Parked]"},
		{"all pods lost", View{Replicas: 2, State: two}, "1.1:e",
			"Parked run 1 [!PodGone !PodEnded Parked]"},
		{"who waits for a job ends", View{Replicas: 2, State: two, Live: Live{Waiting: true}},
			"1.1:r", "Running run 1 members 1 delete 1.1 [!PodGone]"},
		{"failed, to be begun again", View{Replicas: 2, Retries: 1, State: two},
			"1.0:re=failed 1.1:r", "Parked run 1 delete 1.1 [!Retried]"},
		{"the first pod starts", View{Replicas: 1, State: first}, "1.0",
			"Starting run 1 members 0?"},
		{"the first pod runs", View{Replicas: 1, State: first}, "1.0:r",
			"Running run 1 members 0"},
		{"there is no first pod", View{Replicas: 1, State: first}, "", "Parked run 1 [Parked]"},
		{"parked already", View{Replicas: 1, State: State{Phase: Parked, Run: 1}},
			"1.0:re=parked 1.1:r", "Parked run 1 delete 1.1"},
		{"deleted", View{Replicas: 2, Deleted: true, State: two}, "1.0:r 1.1:e",
			"Running run 1 members 0 1 delete 1.0 1.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.view.Frozen, c.view.Pods = true, parse(t, c.pods)
			if got := show(Next(c.view)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
