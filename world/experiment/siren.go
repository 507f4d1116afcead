package experiment

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/decide/price"
	"github.com/shoal-ml/shoal/sim/trace"
)

// The experiment siren, with profiles of applications that Input reads. Experiments run on the
// goroutine that calls Run, and block on the files of Input.Data alone.

// applications are those of Pollux's profiles, and the batch that each begins with.
var applications = []struct {
	name  string
	first int
}{{"bert", 12}, {"cifar10", 128}, {"deepspeech2", 20}, {"imagenet", 200}, {"ncf", 256},
	{"yolov3", 8}}

// sirenSlots are the GPUs that an epoch can have, four a host.
var sirenSlots = []int{1, 2, 4, 8, 16, 32, 64}

const (
	sirenRuns   = 300 // that the policy is trained on
	sirenUnseen = 20  // runs that neither training nor the gate has seen
	// sirenBudget is the budget of the learned policy, in times of the least that a job can cost.
	sirenBudget = 1.5
)

// siren asks what it brings to choose slots and batch anew for each epoch.
var siren = Experiment{
	Name: "siren",
	Paper: "Wang, Niu, Li: Distributed Machine Learning with a Serverless Architecture, " +
		"INFOCOM 2019, sections III and IV",
	Question: "How much sooner does a job end within a budget if slots and batch are chosen anew " +
		"for each epoch?",
	Published: "up to 44 % less time than a fixed cluster of machines at the same cost",
	Run:       runSiren,
}

// runSiren plans six applications within three budgets, and trains the policy on each.
func runSiren(in *Input) (*Table, error) {
	t := &Table{Heads: []string{"APPLICATION", "EPOCHS", "1.1 X", "1.5 X", "2 X", "LEARNED ALONE",
		"GUARDED", "ACTS", "UNSEEN"}, Difference: "The columns " +
		"of budgets, in times of the least that a job can cost, say how much less time it takes " +
		"than with the best slots and batch that stay: much where the noise of the gradients " +
		"grows. LEARNED ALONE, GUARDED and UNSEEN are the learned policy over the twin in the " +
		"worst of 20 runs: without and with its guard in those that judge whether it acts, and " +
		"then in others. To learn does not pay where a twin is there."}
	for i, a := range applications {
		in.reportProgress("siren", i, len(applications))
		epochs, noise, err := in.waysByEpoch(a.name, a.first)
		if err != nil {
			return nil, err
		}
		row := []string{a.name, fmt.Sprint(len(epochs))}
		cheapest, _ := price.WithinBudget(epochs, 0)
		for _, budget := range []float64{1.1, sirenBudget, 2} {
			plan, err := price.WithinBudget(epochs, budget*cheapest.Cost)
			if err != nil {
				return nil, err
			}
			fixed, ok := price.Fixed(epochs, budget*cheapest.Cost)
			if !ok {
				row = append(row, "no fixed way")
				continue
			}
			row = append(row, fmt.Sprintf("%.0f %%", 100*(1-plan.Seconds/fixed.Seconds)))
		}
		job := &price.Budgeted{Epochs: epochs, Noise: noise, Budget: sirenBudget * cheapest.Cost,
			Off: 0.1, OffEpoch: 0.05}
		policy := price.TrainSiren(job, sirenRuns, in.Seed)
		worst := 0.0
		for run := range uint64(sirenUnseen) {
			seed := in.Seed ^ (run+1)<<32
			worst = max(worst, job.Score(job.Play(policy.Policy(), seed))/
				job.Score(job.Play(price.ByTwin, seed)))
		}
		acts := "no"
		if policy.Acts {
			acts = "yes"
		}
		t.Rows = append(t.Rows, append(row, factorText(policy.Alone), factorText(policy.Worst),
			acts,
			factorText(worst)))
	}
	return t, nil
}

// factorText writes a factor as people read it, such as "1.250 x".
func factorText(x float64) string { return fmt.Sprintf("%.3f x", x) }

// waysByEpoch returns the ways of each epoch of an application that begins with a batch: with some
// GPUs, on as few hosts as have them, and with each batch that it was trained with. It also returns
// the noise scale of each epoch over the first batch. An epoch is one of the first batch, and a way
// takes as many steps as come as far, by the gradients that were measured with its batch where
// training was as far; a slot costs 1 a second.
func (in *Input) waysByEpoch(name string, first int) (epochs [][]price.Way,
	noise []float64, err error) {
	p, err := in.readProfile(name)
	if err != nil {
		return nil, nil, err
	}
	i := slices.IndexFunc(p.Epochs, func(e trace.Epochs) bool { return e.Batch == first })
	if i < 0 {
		return nil, nil, fmt.Errorf("%s was not trained with a batch of %d", name, first)
	}
	smallest, largest := math.MaxInt, 0
	for _, x := range p.Points {
		smallest, largest = min(smallest, x.LocalBatch), max(largest, x.LocalBatch)
	}
	before := 0.0
	for _, e := range p.Epochs[i].List {
		var ways []price.Way
		for _, slots := range sirenSlots {
			for _, trained := range p.Epochs {
				batch := float64(trained.Batch)
				local := batch / float64(slots)
				rounds := math.Ceil(local / float64(largest)) // gradients are added up in between
				step, sync, err := p.StepTime((slots+3)/4, slots, local/rounds)
				if err != nil || local < float64(smallest) {
					continue
				}
				took := step + float64((rounds-1)*(step-sync))
				steps := (e.Progress - before) /
					trained.At(e.Progress).Gain(batch/float64(first))
				ways = append(ways, price.Way{Slots: slots, Batch: batch,
					Seconds: steps * took, Cost: float64(slots) * float64(steps*took)})
			}
		}
		epochs, noise = append(epochs, ways), append(noise, e.Var/max(e.Sqr, 1e-12))
		before = e.Progress
	}
	return epochs, noise, nil
}

// readProfile reads what was measured of an application. It fails where a file is missing or is
// none.
func (in *Input) readProfile(name string) (*trace.Profile, error) {
	p := &trace.Profile{App: name}
	folder := path.Join("pollux-profiles", name)
	list, err := fs.ReadDir(in.Data, folder)
	if err != nil {
		return nil, err
	}
	for _, entry := range list {
		file, is := strings.CutSuffix(entry.Name(), ".csv")
		if !is {
			continue
		}
		text, err := fs.ReadFile(in.Data, path.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		if number, is := strings.CutPrefix(file, "validation-"); is {
			var batch int
			if batch, err = strconv.Atoi(number); err == nil {
				_, err = p.ReadEpochs(batch, bytes.NewReader(text), false)
			}
		} else {
			_, err = p.ReadPoints(bytes.NewReader(text), false)
		}
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", folder, entry.Name(), err)
		}
	}
	return p, nil
}
