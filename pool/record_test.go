package pool

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Values as they are written, and as docs/formats/pool.md shows them.
const (
	headText = `{"shoal":"pool","version":1,"pool":"lab","host":"node1","address":"","run":"5f0c27a9d1e4","since":1795798900000,"ended":0,"policy":"elastic"}`
	jobText  = `{"shoal":"pooljob","version":1,"pool":"lab","job":"big","number":1,"submission":{"name":"big","spec":"command: [python3, train.py]\n","dir":"/home/ada","env":["PATH=/usr/bin"],"who":"ada@node1","kind":"0f3a","min":1,"max":4,"asked":4,"sizes":null,"tenant":"","priority":0,"deadline":0,"value":0,"budget":0,"preempt":"shrink"},"submitted":1795798900000,"state":"running","because":"2 slots for urgent, priority 10","attempt":1,"lead":"node1","want":{"node1":2},"target":{"node1":2},"held":{"node1":2},"parts":{"node1":1},"parted":1,"hurt":false,"pinned":false,"names":{"node1":"here"},"elastic":true,"steps":400,"goal":0,"speeds":{"2":310.5},"began":1795798900020,"over":0,"error":"","stop_by":"","stop_now":false,"fails":0,"asks":0,"expect":{"pause":2,"end":0,"low":0,"high":0},"run":"/home/ada/.local/state/shoal/runs/big","history":{"started":1795798900020,"waited":20,"since":1795798900000,"counted":1795798910338,"attained":41.272,"moves":1,"moved_at":1795798910338,"runs_from":1795798910340,"turn":1},"changes":[{"at":1795798910338,"from":4,"to":2,"because":"2 slots for urgent, priority 10","before":0,"expected":{"pause":2,"end":0,"low":0,"high":0},"done":1795798910356,"outcome":""}]}`
	hostText = `{"shoal":"poolhost","version":1,"pool":"lab","host":"node1","slots":4,"address":"","leaving":false,"forgot":false}`
	coreText = `{"shoal":"poolcore","version":1,"pool":"lab","policy":"asrpt","memory":"e30="}`
	pastText = `{"shoal":"poolpast","version":1,"pool":"lab","kind":"0f3a","runs":1,"steps":4096,"spread":0,"speeds":{"4":610},"ends":[{"at":1795798910338,"part":1.04,"missed":0}],"halves":[],"tail":850}`
)

// stored returns a record that has one value of each kind, but for that of the head.
func stored() map[string][]byte {
	return map[string][]byte{JobKey("lab", "big"): []byte(jobText),
		HostKey("lab", "node1"): []byte(hostText), PastKey("lab", "0f3a"): []byte(pastText),
		MemoryKey("lab"): []byte(coreText)}
}

// What docs/formats/pool.md shows is read, and the pool goes on from it.
func TestRestoreWhatIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/formats/pool.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{headText, jobText, hostText, coreText, pastText} {
		if !bytes.Contains(page, []byte("\n"+text+"\n")) {
			t.Errorf("docs/formats/pool.md does not show %s", text)
		}
	}
	if h, err := DecodeHead("lab", []byte(headText)); err != nil || h.Host != "node1" {
		t.Errorf("%+v %v", h, err)
	}
	m, err := Restore(Config{Name: "lab"}, 1795798920000, stored())
	if err != nil {
		t.Fatal(err)
	}
	v, err := m.Find("big")
	if err != nil || v.State != Running || v.Workers != 2 || len(v.Changes) != 1 {
		t.Errorf("%+v %v", v, err)
	}
	if p := m.past["0f3a"]; p == nil || p.Steps != 4096 {
		t.Errorf("%+v", p)
	}
}

// goOn plays a restored pool through what a head does first, and fails if that breaks a promise.
func goOn(t *testing.T, m *Machine) {
	m.HostUp(2, "node1", 4, "")
	m.Settle(2)
	for range 3 {
		m.Reported(3, Report{Host: "node1", Jobs: []JobReport{{Job: "big", Attempt: 1, Part: 1,
			Live: true, Led: &Led{Host: "here", Size: 2, Want: 2, Elastic: true, Steps: 401,
				Workers: map[string]int{"here": 2}}}}})
		m.Settle(3)
		for _, w := range m.TakeWrites() {
			m.Written(4, w)
		}
	}
	m.Reported(5, Report{Host: "node1"})
	m.Settle(5)
	m.TakeOrders()
	m.Jobs(true)
	m.Hosts("node1")
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

// A record that is not as shoal writes it is refused, with the key and what is wrong.
func TestRestoreRefuses(t *testing.T) {
	for _, c := range []struct{ key, from, to, want string }{
		{JobKey("lab", "big"), `"version":1`, `"version":2`, "version 2 of the format"},
		{JobKey("lab", "big"), `"pooljob"`, `"pool"`, `says that it is "pool"`},
		{JobKey("lab", "big"), `"pool":"lab"`, `"pool":"night"`, `of the pool "night"`},
		{JobKey("lab", "big"), `"number":1,`, ``, "not written as"},
		{JobKey("lab", "big"), `"steps":400`, `"steps":400,"more":1`, "not written as"},
		{JobKey("lab", "big"), `"job":"big"`, `"job":"small"`, "belongs under pooljob.lab.small"},
		{JobKey("lab", "big"), `"steps":400`, `"steps":-4`, "cannot unmarshal"},
		{JobKey("lab", "big"), `"state":"running"`, `"state":"flying"`, "unknown state"},
		{JobKey("lab", "big"), `"min":1`, `"min":0`, "sizes"},
		{JobKey("lab", "big"), `"sizes":null`, `"sizes":[-1]`, "sizes"},
		{JobKey("lab", "big"), `"sizes":null`, `"sizes":[8]`, "sizes"},
		{JobKey("lab", "big"), `"held":{"node1":2}`, `"held":{"node1":0}`, "slots"},
		{JobKey("lab", "big"), `"held":{"node1":2}`, `"held":null`, "slots"},
		{JobKey("lab", "big"), `"held":{"node1":2}`, `"held":{"node1":1}`, "slots"},
		{JobKey("lab", "big"), `"parts":{"node1":1}`, `"parts":null`, "list"},
		{JobKey("lab", "big"), `"parts":{"node1":1}`, `"parts":{"node1":0}`, "parts"},
		{JobKey("lab", "big"), `"parts":{"node1":1}`, `"parts":{"node1":7}`, "parts"},
		{JobKey("lab", "big"), `"turn":1`, `"turn":18446744073709551615`, "turn"},
		{JobKey("lab", "big"), `"moves":1`, `"moves":-1`, "no number"},
		{MemoryKey("lab"), `"version":1`, `"version":2`, "version 2 of the format"},
		{HostKey("lab", "node1"), `"slots":4`, `"slots":-4`, "-4 slots"},
		{HostKey("lab", "node1"), `"host":"node1"`, `"host":""`, "belongs under"},
		{PastKey("lab", "0f3a"), `"speeds":{"4":610}`, `"speeds":{"-4":610}`, "speeds"},
		{PastKey("lab", "0f3a"), `1.04`, `0`, "ends"},
		{PastKey("lab", "0f3a"), `"missed":0`, `"missed":2`, "ends"},
		{PastKey("lab", "0f3a"), `[{"at":1795798910338,"part":1.04,"missed":0}]`, `null`, "0 ends"},
		{PastKey("lab", "0f3a"), `"tail":850`, `"tail":-1`, "below 0"},
		{PastKey("lab", "0f3a"), `"steps":4096`, `"steps":-1`, "below 0"},
		{JobKey("lab", "big"), `"speeds":{"2":310.5}`, `"speeds":{"2":-3}`, "speeds"},
	} {
		values := stored()
		values[c.key] = bytes.Replace(values[c.key], []byte(c.from), []byte(c.to), 1)
		_, err := Restore(Config{Name: "lab"}, 1, values)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s: got %v, want %q", c.key, c.to, err, c.want)
		}
	}
}

// FuzzRestore checks that a record that is accepted is written the same again, and that a pool goes
// on from it.
func FuzzRestore(f *testing.F) {
	f.Add([]byte(jobText), []byte(hostText), []byte(pastText), []byte(headText), []byte{})
	for _, state := range []string{"waiting", "starting", "resizing", "parking", "parked",
		"stopping", "ended"} {
		f.Add([]byte(strings.Replace(jobText, `"running"`, `"`+state+`"`, 1)), []byte(hostText),
			[]byte(pastText), []byte(headText), []byte("{}"))
	}
	f.Fuzz(func(t *testing.T, job, host, past, head, remembered []byte) {
		if h, err := DecodeHead("lab", head); err == nil {
			if text := EncodeHead("lab", h); !bytes.Equal(text, head) {
				t.Errorf("%s is written as %s", head, text)
			}
		}
		for _, policy := range []string{"elastic", "asrpt", "deadline"} {
			m, err := Restore(Config{Name: "lab", Policy: policy}, 1, map[string][]byte{
				JobKey("lab", "big"): job, HostKey("lab", "node1"): host,
				PastKey("lab", "0f3a"): past, MemoryKey("lab"): encodeMemory("lab",
					memory{policy, remembered})})
			if err != nil {
				return
			}
			if m.jobs["big"] == nil || m.hosts["node1"] == nil {
				t.Fatalf("%s %s", job, host)
			}
			goOn(t, m)
		}
	})
}

// Whatever a number of a job is in the record, the job is refused, or the pool goes on with it.
func TestRestoreOtherNumbers(t *testing.T) {
	for _, at := range regexp.MustCompile(`[0-9]+`).FindAllStringIndex(jobText, -1) {
		for _, number := range []string{"0", "1", "5", "99999", "9000000000000000000"} {
			values := stored()
			values[JobKey("lab", "big")] = []byte(jobText[:at[0]] + number + jobText[at[1]:])
			for _, policy := range []string{"elastic", "asrpt", "deadline"} {
				m, err := Restore(Config{Name: "lab", Policy: policy}, 1, values)
				if err == nil {
					goOn(t, m)
				}
				if t.Failed() {
					t.Fatalf("with %s in place of %s", number, jobText[at[0]-20:at[1]])
				}
			}
		}
	}
}

// A head can begin with whatever a program has said last.
func TestRecordOfInvalidText(t *testing.T) {
	for _, said := range []string{"caf\xe9", "\xff\xfe \ufffd", `a \ufffd`, "half a \xe2\x82"} {
		m, submit, _ := asked(t, "fifo")
		submit("one", 1, 1, 0)
		m.end(m.jobs["one"], Failed, said)
		values := map[string][]byte{}
		for _, w := range m.TakeWrites() {
			values[w.Key] = w.Value
		}
		next, err := Restore(Config{Name: "lab", Policy: "fifo"}, 4, values)
		if err != nil {
			t.Errorf("%q: %v", said, err)
			continue
		}
		got, known := next.jobs["one"].Error, strings.NewReplacer("\ufffd", "")
		if known.Replace(got) != known.Replace(strings.ToValidUTF8(said, "")) {
			t.Errorf("%q is read as %q", said, got)
		}
	}
}

// A head that begins knows as many jobs that are over as one that lives: those that ended last, and
// those of which processes may be left. It gives no name again.
func TestOldJobsAreForgotten(t *testing.T) {
	m, _, _ := asked(t, "fifo")
	values := map[string][]byte{}
	for i := range maxOver + 5 {
		j := Job{ID: fmt.Sprintf("one-%d", i+1), Number: uint64(i + 1), State: Ended,
			Submission: Submission{Name: "one", Spec: "x", Min: 1, Max: 1, Asked: 1},
			Speeds:     map[int]float64{}, Changes: []Change{}, Over: int64(2*maxOver - i),
			Gang: Gang{Want: Slots{}, Target: Slots{}, Held: Slots{}, Parts: map[string]int{},
				Names: map[string]string{}}}
		if i == maxOver+4 { // it ended first
			j.Held = Slots{"a": 1}
		}
		values[JobKey("lab", j.ID)] = encodeJob("lab", &j)
	}
	m, err := Restore(Config{Name: "lab", Policy: "fifo"}, 1, values)
	if err != nil {
		t.Fatal(err)
	}
	for id, is := range map[string]bool{"one-1": true, "one-1000": false, "one-999": true,
		"one-1004": false, "one-1005": true} {
		if (m.jobs[id] != nil) != is {
			t.Errorf("job %s is known: %t", id, !is)
		}
	}
	if len(m.jobs) != maxOver || m.over[0] != "one-1005" || m.over[1] != "one-999" {
		t.Errorf("%d jobs are known, and the first to end were %v", len(m.jobs), m.over[:2])
	}
	m.HostUp(2, "a", 4, "")
	for i := range 2 { // the first one that ended stays, and the next ones do not
		id, err := m.Submit(2, Submission{Name: "one", Spec: "x", Min: 1, Max: 1, Asked: 1})
		if want := fmt.Sprintf("one-%d", maxOver+6+i); err != nil || id != want {
			t.Fatalf("a job gets the name %s, %v; want %s", id, err, want)
		}
		m.end(m.jobs[id], Stopped, "")
	}
	if len(m.jobs) != maxOver || m.jobs["one-1005"] == nil {
		t.Errorf("%d jobs are known", len(m.jobs))
	}
}

// No job gets a name that another one has had, though that one had asked for it as it is, and none
// is longer than the name of a job may be.
func TestNamesAreGivenOnce(t *testing.T) {
	long := strings.Repeat("x", maxName)
	m, _, _ := asked(t, "fifo")
	values := map[string][]byte{}
	for i, c := range []struct{ want, id string }{
		{"a-2", "a-2"}, {"a", "a"}, {"a", "a-3"}, {"a-3", "a-3-2"}, {long, long},
		{long, long[2:] + "-2"}, {long[2:] + "-2", long[2:] + "-3"}, {long[1:], long[1:]},
		{long[1:], long[2:] + "-4"},
		{"a", "a-4"}, {"a-4", "a-4-2"}, {long, long[2:] + "-5"}, // another head gives these
	} {
		if i == 9 {
			var err error
			if m, err = Restore(m.cfg, 3, values); err != nil {
				t.Fatal(err)
			}
			m.HostUp(3, "a", 4, "")
		}
		id, err := m.Submit(3, Submission{Name: c.want, Spec: "x", Min: 1, Max: 1, Asked: 1})
		if err != nil || id != c.id {
			t.Fatalf("%q is called %q, %v; want %q", c.want, id, err, c.id)
		}
		m.end(m.jobs[id], Stopped, "")
		for _, w := range m.TakeWrites() {
			values[w.Key] = w.Value
		}
		delete(m.jobs, id) // as where more have ended since than are kept
	}
}

// A head that takes over knows that a part of an attempt was lost where the job has no slots any
// more, so that the attempt does not count as one that has failed.
func TestLostPartIsRemembered(t *testing.T) {
	m, submit, _ := asked(t, "fifo")
	submit("one", 1, 1, 0)
	m.HostUp(2, "b", 1, "")
	e := m.jobs["one"]
	e.Parts["b"], e.begun["b"] = 1, true // it is leaving the host
	m.takeAbsence(e, Report{Host: "b"})
	values := map[string][]byte{}
	for _, w := range m.TakeWrites() {
		values[w.Key] = w.Value
	}
	next, err := Restore(Config{Name: "lab", Policy: "fifo"}, 4, values)
	if err != nil {
		t.Fatal(err)
	}
	if !next.jobs["one"].Lost {
		t.Errorf("%+v", next.jobs["one"].Gang)
	}
}

// TestStoreThatIsAway: what a head remembers of a job does not grow with the tries to write it, and
// still has all slots that another head might read, until the store has a newer value.
func TestStoreThatIsAway(t *testing.T) {
	m, err := Restore(Config{Name: "lab"}, 1795798920000, stored())
	if err != nil {
		t.Fatal(err)
	}
	e := m.jobs["big"]
	var last Write
	for i := range 1000 {
		if e.Steps++; i == 500 {
			e.Held = Slots{"node1": 1}
		}
		m.touch(e)
		for _, w := range m.TakeWrites() {
			m.Rewrite(w)
			if w.Job == "big" {
				last = w
			}
		}
	}
	if n := len(e.stored); n != 2 || e.mayHold("node1") != 2 {
		t.Errorf("of a job with two states %d are kept, with %d slots", n, e.mayHold("node1"))
	}
	m.Written(m.now, last)
	if n := len(e.stored); n != 1 || e.mayHold("node1") != 1 {
		t.Errorf("once the store has the last %d are kept, with %d slots", n, e.mayHold("node1"))
	}
}
