package member_test

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/scenariotest"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// Each scenario is a text of commands; under each command stand the decisions that it leads to,
// indented, and they are what the machine decides.
func TestScenarios(t *testing.T) {
	scenariotest.Run(t, func(_ *testing.T, script string) string { return playScript(script) })
}

// player plays a scenario. What is proposed is decided at once, unless the scenario says "hold".
type player struct {
	out  strings.Builder // the scenario with its decisions, so far
	m    *member.Machine // nil before the command "job"
	hold bool            // the scenario has said "hold"
	open member.Record   // proposed, not decided
}

// playScript runs the commands of a scenario, and returns them with the decisions after each.
func playScript(script string) string {
	p := &player{}
	for in := bufio.NewScanner(strings.NewReader(script)); in.Scan(); {
		line := in.Text()
		if strings.HasPrefix(line, "  ") {
			continue // the output of an earlier run
		}
		fmt.Fprintln(&p.out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		p.runCommand(strings.Fields(line))
		for list := p.m.Ready(); len(list) > 0; list = p.m.Ready() {
			for _, a := range list {
				p.printAction(a)
			}
		}
	}
	return p.out.String()
}

// printAction prints an order, and decides a proposal at once unless the scenario says "hold".
func (p *player) printAction(a member.Action) {
	propose, ok := a.(member.Propose)
	switch {
	case !ok:
		fmt.Fprintf(&p.out, "  %s\n", describeAction(a))
	case p.hold:
		p.open = propose.Record
		fmt.Fprintf(&p.out, "  propose %v: %s\n", propose.Record.View, propose.Because)
	default:
		p.m.GenerationDecided(propose.Record.View.Generation)
	}
}

// runCommand gives the machine what a command of a scenario says, and prints what the command asks
// for, or its error; words are the command and its arguments.
func (p *player) runCommand(words []string) {
	text := func(prefix string) string {
		for _, w := range words[1:] {
			if rest, ok := strings.CutPrefix(w, prefix); ok {
				return rest
			}
		}
		return ""
	}
	number := func(prefix string) (n int) {
		fmt.Sscan(text(prefix), &n)
		return n
	}
	w, m := topo.WorkerID(number("w")), p.m
	var err error
	switch words[0] {
	case "job":
		p.hold = false
		p.m = member.New(member.Config{Want: number("want="), Min: number("min="),
			Max: number("max="), Spares: number("spares="), Head: text("head="),
			Hosts: parseHosts(text("on=")), Growth: member.Growth(text("growth="))})
	case "host":
		m.SetHost(words[1], number("slots="), "")
	case "started":
		m.WorkerStarted(w, words[2])
	case "leaves":
		m.WorkerLeaves(w, words[2])
	case "reports":
		m.HostReports(words[1], number("slots="), "")
	case "reported":
		m.HostReported(words[1], number("ordered="))
	case "asks":
		m.WorkerAsks(w)
	case "lost":
		m.WorkerLost(w, strings.Join(words[2:], " "))
	case "hostlost":
		m.HostLost(words[1], strings.Join(words[2:], " "))
	case "drain":
		err = m.Drain(words[1], "you")
	case "undrain":
		m.Undrain(words[1])
	case "vacant":
		fmt.Fprintf(&p.out, "  vacant %v\n", m.VacantHosts())
	case "kept":
		fmt.Fprintf(&p.out, "  kept %v\n", m.BlockedDrains())
	case "finished":
		m.WorkerFinished(w)
	case "allot":
		slots := map[string]int{}
		for _, x := range words[1:] {
			host, n, _ := strings.Cut(x, "=")
			slots[host], _ = strconv.Atoi(n)
		}
		err = m.Allot(slots, "pool lab", "")
	case "resize":
		err = m.ResizeAndHold(number("to="), "you")
	case "whole":
		m.JoinAllAtOnce(number("ranks="), nil)
	case "arrange":
		var order []topo.WorkerID
		for _, x := range words[1:] {
			var w topo.WorkerID
			fmt.Sscanf(x, "w%d", &w)
			order = append(order, w)
		}
		m.Arrange(order, "the mesh wants it")
	case "boundary":
		m.ReachBoundary()
	case "sparing":
		m.SetSparing()
	case "tick":
		for range max(number("times="), 1) {
			m.Tick()
		}
	case "waiting":
		fmt.Fprintf(&p.out, "  waiting %v, asking %d\n", m.WaitingWorkers(), m.CountEntering())
	case "voters":
		fmt.Fprintf(&p.out, "  voters %v\n", m.Record().Voters())
	case "step":
		m.BeginStep()
	case "hold":
		p.hold = true
	case "decided":
		m.GenerationDecided(p.open.View.Generation)
	case "restore": // another host takes over, without one that is gone
		p.m = member.Restore(m.Record(), text("on="),
			member.Gone{Host: text("without="), How: "is gone"})
	case "told":
		m.AllReported()
	default:
		fmt.Fprintf(&p.out, "  error: no command %q\n", words[0])
	}
	if err != nil {
		fmt.Fprintf(&p.out, "  error: %v\n", err)
	}
}

// parseHosts reads hostA:2,hostB:2, with slots; nil for "".
func parseHosts(text string) (list []member.Host) {
	for part := range strings.SplitSeq(text, ",") {
		if name, slots, ok := strings.Cut(part, ":"); ok {
			n, _ := strconv.Atoi(slots)
			list = append(list, member.Host{Name: name, Slots: n})
		}
	}
	return list
}

// describeAction puts an order into words.
func describeAction(a member.Action) string {
	switch a := a.(type) {
	case member.Start:
		if a.Host != "" {
			return fmt.Sprintf("start %d from w%d on %s: %s", a.Count, a.First, a.Host, a.Because)
		}
		return fmt.Sprintf("start %d: %s", a.Count, a.Because)
	case member.Stop:
		return fmt.Sprintf("stop w%d: %s", a.Worker, a.Because)
	case member.Activate:
		s := a.View.String()
		for _, part := range []struct {
			name string
			list []topo.WorkerID
		}{{"joined", a.Joined}, {"lost", a.Lost}, {"finished", a.Finished},
			{"released", a.Released}, {"again", a.Again}} {
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
