package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The rule about the walks of ARCHITECTURE.md: numbered lists that follow one thing through the
// packages that it passes. It only reads the tree.

// WalkRooms is the largest number of packages, and folders of Python, that a walk may pass.
const WalkRooms = 8

// Walks is how many walks ARCHITECTURE.md has. Without it, a page whose lists are not numbered any
// more would break no rule.
const Walks = 7

// turnMark begins the step at which a walk turns, and goes up again with an answer.
const turnMark = "**Back**"

var (
	walkHeading = regexp.MustCompile(`(?m)^## `)
	// walkStep is a numbered step, with the lines that go on with it.
	walkStep = regexp.MustCompile(`(?m)^\d+\. (.*(?:\n   .*)*)`)
	walkName = regexp.MustCompile("`([a-z0-9_]+(?:/[a-z0-9_]+)*)(/[a-z0-9_]+\\.(?:go|py))?/?`")
)

// checkWalks refuses a walk that passes more than WalkRooms packages, that turns more than once, or
// whose steps do not go down as layers.txt has it, and a page that has not as many walks as Walks.
func checkWalks(t *Tree) []Finding { return checkWalksText(t, layersText, Walks) }

// checkWalksText is checkWalks with the given text for layers.txt, and number of walks.
func checkWalksText(t *Tree, text string, walks int) (found []Finding) {
	const page = "ARCHITECTURE.md"
	l, err := parseLayers(text)
	if f := t.fileAt(page); err == nil && f != nil {
		n := 0
		for _, section := range walkHeading.Split(string(f.Text), -1) {
			title, list, _ := strings.Cut(section, "\n")
			w, turns := t.roomsOfSteps(list)
			if len(w) > 1 {
				n++
			}
			for _, problem := range l.walkProblems(w, turns) {
				found = append(found, Finding{page, 0, "the walk «" + title + "» " + problem})
			}
		}
		if n != walks {
			found = append(found, Finding{page, 0, fmt.Sprintf("%d sections have a numbered list "+
				"that names packages, and there are %d walks: number the steps of each, or say in "+
				"Walks how many there are", n, walks)})
		}
	}
	return sortFindings(found)
}

// walk is the rooms of a walk in the order in which its steps name them. A room that is named twice
// in a row is one.
type walk []walkRoom

// walkRoom is a package, or a folder of Python, as one step of a walk names it.
type walkRoom struct {
	name  string
	step  int  // number of the step, from 1
	turns bool // the step is the one at which the walk turns
}

// roomsOfSteps returns the rooms that the numbered steps of a text name, and how many steps turn.
func (t *Tree) roomsOfSteps(text string) (w walk, turns int) {
	pkgs := t.packages()
	for i, step := range walkStep.FindAllStringSubmatch(text, -1) {
		back := strings.HasPrefix(step[1], turnMark)
		if back {
			turns++
		}
		for _, m := range walkName.FindAllStringSubmatch(step[1], -1) {
			if _, is := pkgs[m[1]]; !is && !isPython(m[1]) ||
				len(w) > 0 && w[len(w)-1].name == m[1] {
				continue
			}
			w = append(w, walkRoom{m[1], i + 1, back})
		}
	}
	return w, turns
}

// isPython reports whether a room is a folder of Python.
func isPython(room string) bool { return strings.HasPrefix(room, "python/") }

// walkProblems returns what is wrong with a walk of which so many steps turn.
func (l *layers) walkProblems(w walk, turns int) (problems []string) {
	if turns > 1 {
		problems = append(problems, fmt.Sprintf("turns %d times; a walk turns once at most", turns))
	}
	var names []string // rooms so far
	for i, r := range w {
		if i > 0 && !r.turns {
			if why := l.upward(w[i-1], r.name, names); why != "" {
				problems = append(problems, fmt.Sprintf("goes up in step %d, from %s to %s, which "+
					"%s: tell it in the order of calls, or begin the step with %s", r.step,
					w[i-1].name, r.name, why, turnMark))
			}
		}
		if !slices.Contains(names, r.name) {
			names = append(names, r.name)
		}
	}
	if len(names) > WalkRooms {
		problems = append(problems, fmt.Sprintf("passes %d rooms, the limit is %d: %s", len(names),
			WalkRooms, strings.Join(names, ", ")))
	}
	return problems
}

// upward returns why the step from a room to the next is not one down; "" = it is. before are the
// rooms that the walk has passed. A room is below those that may import it; the agent is below the
// programs of Python, which call it over a socket.
func (l *layers) upward(from walkRoom, to string, before []string) string {
	switch {
	case isPython(to):
		if !isPython(from.name) && !from.turns {
			return "is a program of users"
		}
		return ""
	case l.allowed[to][from.name] && slices.Contains(before, to):
		return "was passed before"
	case to == "agent" && isPython(from.name):
		return ""
	case !slices.ContainsFunc(before, func(b string) bool { return l.allowed[b][to] }):
		return "no room before may import"
	}
	return ""
}
