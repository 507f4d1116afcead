package decide

import "testing"

// TestPark has a job of two pods parked.
func TestPark(t *testing.T) {
	for _, c := range []struct {
		name    string
		live    Live
		because string
		pods    string
		want    string
	}{
		{"it trains", Live{Answers: true}, "", "1.0:r 1.1:r",
			"Parking run 1 members 0 1 park [Parking]"},
		{"it is gone, and who is left waits for one to join", Live{Waiting: true}, "",
			"1.0:e 1.1:r", "Parking run 1 members 0 1 delete 1.1 [Parking]"},
		{"it is about to begin, and the other pod waits for that", Live{}, "", "1.0:r 1.1:r",
			"Parking run 1 members 0 1 [Parking]"},
		{"it has not begun, since it waits for the other pod", Live{Answers: true, Early: true}, "",
			"1.0:r 1.1", "Parking run 1 members 0 1 delete 1.0 1.1 [Parking]"},
		{"it is paused, and gets the pod that it lacks", Live{Answers: true, Paused: true}, "",
			"1.0:r", "Parking run 1 members 0 2? create 2 [Parking !PodGone]"},
		{"it is paused, and may have none", Live{Answers: true, Paused: true}, "for another job",
			"1.0:r", "Parking run 1 members 0 1 park [Parking]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := View{Replicas: 2, Suspend: true, Because: c.because, Live: c.live,
				Pods: parse(t, c.pods), State: State{Phase: Running, Run: 1, Begun: true, Next: 2,
					Members: []Member{{0, true}, {1, true}}}}
			if got := show(Next(v)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
