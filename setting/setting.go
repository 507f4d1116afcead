// Package setting holds how a job trains, as far as that can change while it does: the setting, its
// text form, which parts of it a program has opened, and the record of a change. They are values;
// no function keeps or changes what it is given.
package setting

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/spelling"
)

// Setting is how a job trains from one step on. All members have the same setting in the same step.
// In the zero value everything is as the program states it.
type Setting struct {
	// Number is the number of the newest change of the job; 0 = there was none. When a change is
	// reverted, the number stays.
	Number uint64 `json:"number,omitempty"`
	// Batch is the number of samples of an optimizer step over all workers; 0 = as the program
	// states.
	Batch uint64 `json:"batch,omitempty"`
	// Round is the number of optimizer steps from one commit to the next, which workers make on
	// their own, at most MaxRound; 1 = each step is committed, 0 = as the program states.
	Round uint32 `json:"round,omitempty"`
	// Shares has the part of the work of each rank, as whole numbers that are compared with each
	// other; nil = all ranks have the same. It has at most MaxShares elements.
	Shares []uint16 `json:"shares,omitempty"`
	// Sync is how workers synchronise, as NAME or NAME:OPTION=NUMBER:…, such as
	// "diloco:lr=0.7:momentum=0.9"; "" = as the program states.
	Sync string `json:"sync,omitempty"`
	// Rate is the factor of the learning rate that goes with Batch, compared with the batch that
	// the program states; 0 = workers choose it by their optimizers.
	Rate float64 `json:"rate,omitempty"`
	// Save is the number of steps from one checkpoint to the next; 0 = as the program states.
	Save uint64 `json:"save,omitempty"`
	// Size is the number of members that the job is asked to have, up to MaxSize; 0 = as it was
	// started, or as people have resized it.
	Size uint32 `json:"size,omitempty"`
	// People has the parts that people have set, by name, each with the number of the newest change
	// by which one has, 0 = before the checkpoint from which the job goes on; nil = none. They are
	// no part of the text form, and nobody changes the map.
	People map[string]uint64 `json:"people,omitempty"`
}

// MaxSize is the largest number of members, as collective.MaxMembers is.
const MaxSize = 1 << 16

// MaxShares is the largest number of ranks among which work can be divided unequally.
const MaxShares = 256

// maxValue bounds Batch and Save, as cursor.MaxSamples bounds a batch.
const maxValue = 1 << 62

// names are the words of the text form, in its order.
var names = []string{"batch", "round", "shares", "sync", "rate", "save", "size"}

// String returns the text form, such as "batch=512,save=100", which With reads: the parts that are
// not as the program states, without Number; "" if there is none.
func (s Setting) String() string { return strings.Join(s.parts(), ",") }

// parts returns the words of the text form.
func (s Setting) parts() (words []string) {
	add := func(name, value string, is bool) {
		if is {
			words = append(words, name+"="+value)
		}
	}
	shares := make([]string, len(s.Shares))
	for i, n := range s.Shares {
		shares[i] = strconv.Itoa(int(n))
	}
	add("batch", strconv.FormatUint(s.Batch, 10), s.Batch > 0)
	add("round", strconv.FormatUint(uint64(s.Round), 10), s.Round > 0)
	add("shares", strings.Join(shares, ":"), len(shares) > 0)
	add("sync", s.Sync, s.Sync != "")
	add("rate", strconv.FormatFloat(s.Rate, 'g', -1, 64), s.Rate > 0)
	add("save", strconv.FormatUint(s.Save, 10), s.Save > 0)
	add("size", strconv.FormatUint(uint64(s.Size), 10), s.Size > 0)
	return words
}

// With returns the setting with the parts that a text gives, such as "batch=512,save=100"; the
// other parts stay. An error says what is wrong with the text.
func (s Setting) With(text string) (Setting, error) {
	for _, word := range strings.Split(text, ",") {
		name, value, is := strings.Cut(strings.TrimSpace(word), "=")
		if !is || value == "" {
			return s, fmt.Errorf("%q is no part of a setting: write NAME=VALUE, such as batch=512",
				word)
		}
		if err := s.setPart(name, value); err != nil {
			return s, err
		}
	}
	return s, s.Validate()
}

// Auto is the value by which a person leaves a part of the setting to policies again.
const Auto = "auto"

// follower names the part that goes with another one, where a text has that one alone.
var follower = map[string]string{"batch": "rate", "sync": "round"}

// WithRequested returns the setting that a person asks for by the parts that a text gives. What it
// gives a value is of People from then on, and what it gives Auto is so no more, and stays. A rate
// goes with its batch: where the text has a batch alone, workers choose the rate. And sync=ssgd
// goes with rounds of one step. An error says what is wrong with the text.
func (s Setting) WithRequested(text string) (Setting, error) {
	values := map[string]string{}
	var words []string // those that give a value
	for _, word := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(word), "=")
		if _, twice := values[name]; twice {
			return s, fmt.Errorf("%s is given twice: leave one out", name)
		}
		if values[name] = value; value != Auto || !slices.Contains(names, name) {
			words = append(words, word)
		}
	}
	next, err := s, error(nil)
	if len(words) > 0 {
		next, err = s.With(strings.Join(words, ","))
	}
	if err != nil {
		return s, err
	}
	next.People = map[string]uint64{}
	maps.Copy(next.People, s.People)
	for name, value := range values {
		if value == Auto {
			next.leaveToPolicies(name)
		} else {
			next.People[name] = cmp.Or(s.People[name], s.Number+1)
		}
		if _, given := values[follower[name]]; value == Auto && !given {
			next.leaveToPolicies(follower[name])
		}
	}
	batch, sync := values["batch"], values["sync"]
	if _, given := values["rate"]; batch != "" && batch != Auto && !given {
		next.Rate = 0
	}
	if _, given := values["round"]; sync == Ssgd && !given {
		next.Round = 1
	}
	return next, nil
}

// KeptPeople returns the names of those parts that people have set which a checkpoint keeps, in
// their order in the text form: all but the size, which is that of the new start.
func (s Setting) KeptPeople() (list []string) {
	for _, name := range names {
		if _, is := s.People[name]; is && name != "size" {
			list = append(list, name)
		}
	}
	return list
}

// WithPeople returns the setting where people had also set the parts of these names before the
// checkpoint from which the job goes on.
func (s Setting) WithPeople(list []string) Setting {
	if len(list) == 0 {
		return s
	}
	people := map[string]uint64{}
	for _, name := range list {
		people[name] = 0
	}
	maps.Copy(people, s.People)
	s.People = people
	return s
}

// WhenSet returns when a person has set a part, in words; "" = nobody has.
func (s Setting) WhenSet(part string) string {
	switch n, is := s.People[part]; {
	case !is:
		return ""
	case n == 0:
		return "before the checkpoint"
	default:
		return fmt.Sprintf("change %d", n)
	}
}

// LeftPart returns the first part that a text leaves to policies, such as "batch"; "" = none.
func LeftPart(text string) string {
	for _, word := range strings.Split(text, ",") {
		if name, value, _ := strings.Cut(strings.TrimSpace(word), "="); value == Auto {
			return name
		}
	}
	return ""
}

// leaveToPolicies makes a part one that no person has set. A rate that one has set goes with that:
// workers choose it again.
func (s *Setting) leaveToPolicies(name string) {
	if _, set := s.People[name]; set && name == "rate" {
		s.Rate = 0
	}
	delete(s.People, name)
}

// setPart sets the part of a name to a value in text form.
func (s *Setting) setPart(name, value string) (err error) {
	whole := func(bits int) (n uint64) {
		if n, err = strconv.ParseUint(value, 10, bits); err == nil && n == 0 {
			err = strconv.ErrRange
		}
		return n
	}
	switch name {
	case "batch":
		s.Batch = whole(63)
	case "round":
		s.Round = uint32(whole(32))
	case "shares":
		s.Shares, err = parseShares(value)
	case "sync":
		s.Sync = value
	case "rate":
		if s.Rate, err = strconv.ParseFloat(value, 64); err == nil && s.Rate == 0 {
			err = strconv.ErrRange
		}
	case "save":
		s.Save = whole(63)
	case "size":
		s.Size = uint32(whole(32))
	default:
		if isOption(name) {
			return fmt.Errorf("%s is an option of sync, and follows it after a colon, such as "+
				"sync=diloco:lr=0.7:momentum=0.9", name)
		}
		return fmt.Errorf("no part of a setting is called %q: there are %s%s", name,
			strings.Join(names, ", "), spelling.Meant(name, names))
	}
	if err != nil {
		return fmt.Errorf("%s=%s: the value is no number that can be, such as %s", name, value,
			examples[name])
	}
	return nil
}

// examples has a value of each part whose value is a number.
var examples = map[string]string{"batch": "512", "round": "8", "shares": "2:1:1", "rate": "1.4",
	"save": "100", "size": "4"}

// parseShares reads the shares of the ranks, such as "2:1:1".
func parseShares(text string) (shares []uint16, err error) {
	for _, word := range strings.Split(text, ":") {
		n, err := strconv.ParseUint(word, 10, 16)
		if err != nil {
			return nil, err
		}
		shares = append(shares, uint16(n))
	}
	return shares, nil
}

// Validate returns what is wrong with a setting that no job can have; nil = nothing.
func (s Setting) Validate() error {
	switch {
	case s.Batch > maxValue || s.Save > maxValue:
		return fmt.Errorf("batch=%d, save=%d: neither goes beyond 2^62", s.Batch, s.Save)
	case s.Size > MaxSize:
		return fmt.Errorf("size=%d: a job has up to %d workers", s.Size, MaxSize)
	case s.Round > MaxRound:
		return fmt.Errorf("round=%d: it takes up to %d steps", s.Round, MaxRound)
	case math.IsNaN(s.Rate) || s.Rate < 0 || s.Rate > 1e6:
		return fmt.Errorf("rate=%v: it takes a factor above 0, up to 10^6", s.Rate)
	case len(s.Shares) > MaxShares:
		return fmt.Errorf("%d shares; up to %d ranks can have unequal work", len(s.Shares),
			MaxShares)
	case len(s.Shares) > 0 && !slices.ContainsFunc(s.Shares, func(n uint16) bool { return n > 0 }):
		return fmt.Errorf("shares=0: somebody must do the work, such as shares=2:1:1")
	}
	for name := range s.People {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%q, which a person is to have set, is no part of a setting", name)
		}
	}
	return checkSync(s.Sync)
}

// Equal reports whether two settings train alike. Number and People do not count.
func (s Setting) Equal(o Setting) bool {
	return s.Batch == o.Batch && s.Round == o.Round && slices.Equal(s.Shares, o.Shares) &&
		s.Sync == o.Sync && s.Rate == o.Rate && s.Save == o.Save && s.Size == o.Size
}

// HasEqualShares reports whether all ranks have the same share of the work.
func (s Setting) HasEqualShares() bool {
	return len(s.Shares) == 0 || slices.Min(s.Shares) == slices.Max(s.Shares)
}

// Levers are the parts of a setting that a program, or who runs it, has opened. In the zero value
// all are closed.
type Levers struct {
	// Batch is what the batch may be; zero = it never changes.
	Batch Range `json:"batch,omitzero"`
	// Size is how many members policies may ask for; zero = they never do. It is open where who
	// runs the job has said how many it may have.
	Size Range `json:"size,omitzero"`
	// Save says that the steps between checkpoints may change.
	Save bool `json:"save,omitempty"`
	// Alike says that the program averages gradients with all workers alike, whatever they have of
	// the samples. Then the shares of work are closed, which they are not otherwise.
	Alike bool `json:"alike,omitempty"`
	// Sync is how workers synchronise as the program states it, and Round after how many steps;
	// both may change then. "" and 0 = gradients are averaged in every step, and neither changes.
	Sync  string `json:"sync,omitempty"`
	Round uint32 `json:"round,omitempty"`
	// Auto says that the program leaves to the job how workers synchronise: then policies may
	// change Sync and Round too, and else only people do.
	Auto bool `json:"auto,omitempty"`
}

// BatchLevers returns the levers of a program that states a batch, and in a list the least and the
// most that it may become. An empty list opens nothing. An error says what is wrong with the list.
func BatchLevers(batch uint64, list []uint64) (Levers, error) {
	if len(list) == 0 {
		return Levers{}, nil
	}
	if len(list) != 2 || list[0] < 1 || list[1] > maxValue || list[0] > list[1] {
		return Levers{}, fmt.Errorf("%v is no range of batches: give the least and the most, as "+
			"64 and 1024", list)
	}
	r := Range{From: list[0], To: list[1]}
	if !r.Contains(batch) {
		return Levers{}, fmt.Errorf("the range %v does not contain the batch %d, with which the "+
			"program begins", r, batch)
	}
	return Levers{Batch: r}, nil
}

// Range is the numbers from From up to To, both among them.
type Range struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// IsOpen reports whether the range has more than one number.
func (r Range) IsOpen() bool { return r.From < r.To }

// Contains reports whether n is in the range.
func (r Range) Contains(n uint64) bool { return r.From <= n && n <= r.To }

// String returns the range as people read it, such as "64–1024".
func (r Range) String() string { return fmt.Sprintf("%d–%d", r.From, r.To) }

// WhyBatchClosed says in words that the batch is closed, what opens it, and where nothing does.
const WhyBatchClosed = "the batch is closed: batch_range=(least, most) of job.steps or of " +
	"shoal.torch.loader opens it, in Go BatchRange; under the Trainer of transformers or " +
	"Lightning, and in Accelerate's loop, it stays, since they count steps and plan learning " +
	"rates by it"

// WhyAlike says in words why the shares of work are closed where Levers.Alike is set.
const WhyAlike = "the program averages gradients with all workers alike, so each sample of a " +
	"worker with more would count less; wrap the model with shoal.torch.ddp, or average with " +
	"step.allreduce"

// CheckChange returns why a job with these levers does not go from one setting to another; nil = it
// may.
func (l Levers) CheckChange(from, to Setting) error {
	switch {
	case to.Batch != from.Batch && !l.Batch.IsOpen():
		return fmt.Errorf("%s", WhyBatchClosed)
	case to.Rate != from.Rate && !l.Batch.IsOpen():
		return fmt.Errorf("the rate is closed: it goes with the batch; %s", WhyBatchClosed)
	case to.Batch != from.Batch && to.Batch != 0 && !l.Batch.Contains(to.Batch):
		return fmt.Errorf("batch=%d is outside of what the program allows, %v (batch_range)",
			to.Batch, l.Batch)
	case to.Size != from.Size && !l.Size.IsOpen():
		return fmt.Errorf("the size is closed: give shoal run --max, and it may change up to that")
	case to.Size != from.Size && to.Size != 0 && !l.Size.Contains(uint64(to.Size)):
		return fmt.Errorf("size=%d is outside of what the job may have, %v (--min, --max)", to.Size,
			l.Size)
	case to.Save != from.Save && !l.Save:
		return fmt.Errorf("the steps between checkpoints are closed: " +
			"job.checkpoint(…, every=\"auto\") opens them")
	}
	return cmp.Or(l.checkSyncChange(from, to), l.CheckSharesChange(from, to), to.Validate())
}

// CheckPolicyChange is CheckChange for a change that a policy wants.
func (l Levers) CheckPolicyChange(from, to Setting) error {
	if (from.Sync != to.Sync || from.Round != to.Round) && !l.Auto {
		return fmt.Errorf("%s", l.WhyNotAuto())
	}
	return l.CheckChange(from, to)
}

// CheckSharesChange is CheckChange, where only the shares of work count.
func (l Levers) CheckSharesChange(from, to Setting) error {
	if l.Alike && !slices.Equal(to.Shares, from.Shares) && !to.HasEqualShares() {
		return fmt.Errorf("the shares of work are closed: %s", WhyAlike)
	}
	return nil
}
