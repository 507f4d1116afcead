package setting

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/spelling"
)

// How workers synchronise: in every step, or after rounds of steps that each makes on its own.
// Settings and levers are values, which nothing here changes, so any goroutine may call it.

const (
	// Ssgd averages gradients in every step.
	Ssgd = "ssgd"
	// Own says that the program averages what it likes at the end of a round by itself. Programs
	// state it, and nothing else is changed to it or from it.
	Own = "own"
)

// MaxRound bounds Setting.Round, as cursor.MaxRound does.
const MaxRound = 1 << 16

// What Setting.Sync has at most.
const (
	maxSync   = 128     // bytes
	maxOption = 1 << 53 // the value of an option
	maxParts  = 1024
)

// syncs has the ways to synchronise that people can ask for, and the options of each, which are
// numbers.
var syncs = []struct {
	name    string
	options []string
}{
	{Ssgd, nil},
	{"local", nil},
	{"diloco", []string{"lr", "momentum"}},
	{"sma", []string{"alpha", "momentum"}},
	{"pair", nil},
	{"hybrid", []string{"parts"}},
}

// MeetsInPairs reports whether, by a way to synchronise, each worker averages with another one in
// each step.
func MeetsInPairs(sync string) bool {
	name := SyncName(sync)
	return name == "pair" || name == "hybrid"
}

// PairParts returns, where workers average in pairs, of how many parts of the parameters two of
// them average one in a step.
func PairParts(sync string) float64 { return optionOf(sync, "parts", 1) }

// optionOf returns the value of an option in a way to synchronise; where it says none that is above
// 0, another one.
func optionOf(sync, option string, otherwise float64) float64 {
	for word := range strings.SplitSeq(sync, ":") {
		if name, value, _ := strings.Cut(word, "="); name == option {
			if x, err := strconv.ParseFloat(value, 64); err == nil && x > 0 {
				return x
			}
		}
	}
	return otherwise
}

// KeepsReplicas reports whether, by a way to synchronise, the parameters of workers still differ
// when a round begins.
func KeepsReplicas(sync string) bool {
	name := SyncName(sync)
	return name == "sma" || name == "pair"
}

// ReplicaSamples returns of how many samples the effect goes with the replica of a worker that is
// lost, one of so many, after so many optimizer steps: what it has learned in earlier rounds and
// has not given to the others. The setting says how workers synchronise, as after WithStated.
//
// By sma a replica gives a part α of its distance to the anchor once a round, where α is at most
// 1/(workers + 1): so what it keeps of a round is 1 − α after that, and (1 − α)² a round later:
// (1 − α)/α rounds in all. By pair half of what it has goes to a partner in each step, so it keeps
// ½ + ¼ + … of a step. 0 = samples that are dealt again at most.
func (s Setting) ReplicaSamples(workers int, steps uint64) float64 {
	if !KeepsReplicas(s.Sync) || workers < 1 {
		return 0
	}
	kept := 1.0
	if SyncName(s.Sync) == "sma" {
		alpha := min(optionOf(s.Sync, "alpha", 0.1), 1/float64(workers+1))
		kept = float64(max(s.Round, 1)) * (1 - alpha) / alpha
	}
	return float64(s.Batch) / float64(workers) * min(kept, float64(steps))
}

// syncNames returns the names of the ways to synchronise.
func syncNames() (list []string) {
	for _, s := range syncs {
		list = append(list, s.name)
	}
	return list
}

// SyncName returns the name of a way to synchronise, without its options.
func SyncName(sync string) string {
	name, _, _ := strings.Cut(sync, ":")
	return name
}

// IsLocal reports whether workers that synchronise in a way make local steps, and average at the
// end of a round how far each has come; else they average gradients in every step.
func IsLocal(sync string) bool { return sync != "" && SyncName(sync) != Ssgd }

// checkSync returns what is wrong with a text of Setting.Sync; nil = nothing.
func checkSync(text string) error {
	words := strings.Split(text, ":")
	if text == "" || text == Own {
		return nil
	}
	if len(text) > maxSync {
		return fmt.Errorf("sync has %d bytes; it takes up to %d", len(text), maxSync)
	}
	i := slices.Index(syncNames(), words[0])
	if i < 0 {
		return fmt.Errorf("sync=%s: there are %s%s", text, strings.Join(syncNames(), ", "),
			spelling.Meant(words[0], syncNames()))
	}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		if !slices.Contains(syncs[i].options, name) || seen[name] {
			return fmt.Errorf("sync=%s: %q is no option of %s, or is given twice: it takes %s%s",
				text, word, words[0], cmp.Or(strings.Join(syncs[i].options, ", "), "none"),
				spelling.Meant(name, syncs[i].options))
		}
		seen[name] = true
		if !isAllowedOption(name, value) {
			example := "0.5"
			if name == "parts" {
				example = "16"
			}
			return fmt.Errorf("sync=%s: %q is no number that can be: write %s=%s, with a colon "+
				"before each option", text, value, name, example)
		}
	}
	return nil
}

// CheckResumed returns why a program that opens the levers l cannot go on where workers of a
// checkpoint synchronised otherwise; nil = it can. "" = as the program states.
func (l Levers) CheckResumed(sync string) error {
	switch {
	case sync == "" || (sync == Own) == (l.Sync == Own):
		return nil
	case l.Sync == Own:
		return fmt.Errorf("the checkpoint is of workers that synchronise by sync=%s, and this "+
			"program averages by itself at the end of a round (job.steps(…, local_steps=…)), and "+
			"has not the anchor: begin without the checkpoint, or use "+
			"shoal.torch.optimizer(…, sync=…)", sync)
	}
	return fmt.Errorf("the checkpoint is of a program that averages by itself at the end of a "+
		"round (job.steps(…, local_steps=…)), and this one states sync=%s: begin without the "+
		"checkpoint, or leave sync out", l.Sync)
}

// isAllowedOption reports whether an option can have a value, as shoal.sync has it in Python:
// workers end where they are told of another one.
func isAllowedOption(name, value string) bool {
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || strings.ContainsAny(value, "xX_") { // Python knows these otherwise
		return false
	}
	switch name {
	case "momentum":
		return x >= 0 && x < 1
	case "alpha":
		return x > 0 && x <= 1
	case "parts":
		return x >= 1 && x <= maxParts && x == math.Trunc(x)
	}
	return x > 0 && x <= maxOption // lr
}

// isOption reports whether some way to synchronise has an option of a name.
func isOption(name string) bool {
	for _, s := range syncs {
		if slices.Contains(s.options, name) {
			return true
		}
	}
	return false
}

// checkRound returns what is wrong with a way to synchronise, for a number of steps; nil = nothing.
func checkRound(sync string, round uint32) error {
	if sync == Ssgd && round > 1 {
		return fmt.Errorf("sync=ssgd averages gradients in every step, which is round=1: for "+
			"round=%d give another one of %s", round, strings.Join(syncNames()[1:], ", "))
	}
	return nil
}

// SyncLevers returns the levers of a program that states how workers synchronise, and after how
// many steps; auto says that it leaves that to the job from then on. "" opens nothing. An error
// says what is wrong with it.
func SyncLevers(sync string, round uint32, auto bool) (Levers, error) {
	if sync == "" && round == 0 && !auto {
		return Levers{}, nil
	}
	err := cmp.Or(checkSync(sync), checkRound(sync, round))
	if err == nil && (sync == "" || round < 1 || round > MaxRound) {
		err = fmt.Errorf("sync=%q with %d steps a round: state both, the steps from 1 to %d", sync,
			round, MaxRound)
	}
	if err == nil && auto && sync == Own {
		err = fmt.Errorf("sync=%s cannot be left to the job, since the program averages by itself",
			sync)
	}
	return Levers{Sync: sync, Round: round, Auto: auto}, err
}

// Validate returns what is wrong with levers that no program can have; nil = nothing. Ranges are
// not looked at.
func (l Levers) Validate() error {
	_, err := SyncLevers(l.Sync, l.Round, l.Auto)
	return err
}

// WithStated returns the setting with what the program states where the setting says nothing of it:
// its batch, and by its levers how workers synchronise. All other parts stay.
func (s Setting) WithStated(batch uint64, l Levers) Setting {
	s.Batch, s.Sync, s.Round = cmp.Or(s.Batch, batch), cmp.Or(s.Sync, l.Sync),
		cmp.Or(s.Round, l.Round)
	return s
}

// CheckSync returns why a worker cannot state the levers l where the job has have, as far as they
// say how workers synchronise, and begun says that steps were made; nil = it can. Who states
// nothing of it leaves that to the others.
func (have Levers) CheckSync(l Levers, begun bool) error {
	same := l.Sync == have.Sync && l.Round == have.Round && l.Auto == have.Auto
	if l.Sync == "" || same || have.Sync == "" && !begun {
		return nil
	}
	return fmt.Errorf("workers synchronise by %s; this worker stated %s; every worker must state "+
		"the same, before the first step", have.syncText(), l.syncText())
}

// syncText says how workers synchronise as a program has stated it.
func (l Levers) syncText() string {
	if l.Sync == "" {
		return "averages of gradients in every step"
	}
	text := fmt.Sprintf("sync=%s,round=%d", l.Sync, l.Round)
	if l.Auto {
		text += ", which it leaves to the job"
	}
	return text
}

// WhyNotAuto says in words why no policy changes how workers synchronise; "" = policies may.
func (l Levers) WhyNotAuto() string {
	switch {
	case l.Auto:
		return ""
	case l.Sync == "":
		return "the program averages gradients in every step: " +
			`shoal.torch.optimizer(…, sync="auto") leaves to the job how workers synchronise`
	}
	return fmt.Sprintf("the program states sync=%s, which only people change: "+
		`sync="auto" leaves it to the job`, l.Sync)
}

// checkSyncChange returns why a job with these levers does not go from one setting to another, as
// far as it says how workers synchronise; nil = it may.
func (l Levers) checkSyncChange(from, to Setting) error {
	switch {
	case from.Sync == to.Sync && from.Round == to.Round:
		return nil
	case l.Sync == "":
		return fmt.Errorf("how workers synchronise is closed: the program averages gradients in " +
			"every step, and opens round with job.steps(…, local_steps=…)")
	case from.Sync != to.Sync && (l.Sync == Own || to.Sync == Own):
		return fmt.Errorf("sync is closed where the program averages by itself at the end of a " +
			"round (job.steps(…, local_steps=…)): only round may change there")
	}
	return checkRound(to.Sync, to.Round)
}
