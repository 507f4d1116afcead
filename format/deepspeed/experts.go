package deepspeed

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed/stages"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/internal/pattern"
)

// This file reads the files of experts. Methods of a reader run on its goroutine, and may read.

var (
	expertFile = pattern.New(
		`^(?:layer_(\d+)_)?expert_(\d+)_mp_rank_(\d+)_model_states\.pt$`)
	expertOpt = pattern.New(`^expp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$`)
	// expertName is that of an expert's parameter: the number in it counts all experts of the
	// layer, but in a rank's optimizer states only its own.
	expertName = pattern.New(
		`^(.*\bdeepspeed_moe\.experts\.deepspeed_experts\.)(\d+)(\..*)$`)
)

// expertsEnd ends the prefix of the names of a layer's experts.
const expertsEnd = ".deepspeed_moe.experts.deepspeed_experts."

// What the reader says of experts, for whoever writes some: the names of the layers of a mixture,
// in the order of their files, and of several tensor parallel ranks whether these have parts of
// each expert, as enable_expert_tensor_parallelism has it.
const (
	expertLayersKey = "expert_layers"
	expertsCutKey   = "expert_tensor_parallelism"
)

// expertCountsKey is where the model states of a stage say how many experts each of its layers has.
const expertCountsKey = "num_experts"

// whyUnnamed says why the state of an optimizer without ZeRO stays in parts.
const whyUnnamed = "without ZeRO an optimizer numbers its parameters and names none"

// An expertAt identifies a file by the layer of a mixture of experts, the expert, and the model
// parallel rank. Each stage of a pipeline counts its layers of experts from 0. Layer -1 is all
// layers: older versions have one file for an expert of all layers. Of an optimizer's file the
// expert is an expert parallel rank.
type expertAt struct{ layer, expert, mp int }

// expertFileName is the name of the file of an expert.
func expertFileName(layer, expert, mp int) string {
	return fmt.Sprintf("layer_%d_expert_%d_mp_rank_%02d_model_states.pt", layer, expert, mp)
}

// classifyExpertFile records a file of an expert by its name alone; it reports whether it is one.
func (r *reader) classifyExpertFile(name string) (bool, error) {
	into := r.experts
	m := expertFile.FindStringSubmatch(name)
	if m == nil {
		into = r.expp
		if m = expertOpt.FindStringSubmatch(name); m == nil {
			return false, nil
		}
		m = []string{m[0], "", m[1], m[2]}
	}
	var n [3]int
	for i, text := range m[1:] {
		x, err := strconv.Atoi(text)
		if text == "" {
			x, err = -1, nil
		}
		if err != nil || x > 1<<20 {
			return true, fmt.Errorf("DeepSpeed: %s: an expert of such a number", name)
		}
		n[i] = x
	}
	a := expertAt{n[0], n[1], n[2]}
	if other := into[a]; other != "" {
		return true, fmt.Errorf("DeepSpeed: %s and %s are of the same expert", other, name)
	}
	into[a] = name
	return true, nil
}

// autoLayersKey is where model states list the layers of experts that DeepSpeed's AutoEP has
// placed.
const autoLayersKey = "ds_autoep_layers"

// autoEPError is the error for a file of experts of AutoEP, for which an optimizer has one tensor
// for all experts of a rank, and in stage 3 the model too.
func autoEPError(file string) error {
	return fmt.Errorf("%s is of experts that DeepSpeed's AutoEP has placed, whose optimizer has "+
		"those of a rank as one tensor, which shoal reads from universal checkpoints only; "+
		"convert the checkpoint with ds_to_universal of that DeepSpeed", file)
}

// readExperts adds the experts of the model to the checkpoint, each from a file of its own, stage
// by stage. It finds out whether tensor parallel ranks have experts of their own.
func (r *reader) readExperts() error {
	if first, err := r.openFile(r.models[rankID{0, 0}]); err == nil { // else who reads it says so
		if list, err := pickle.Get[*pickle.List](first.Root, autoLayersKey); err == nil &&
			len(list.Items) > 0 {
			return autoEPError(first.Name)
		}
	}
	for a, name := range r.experts {
		if a.mp >= r.mp {
			return fmt.Errorf("%s is of a model parallel rank of which there are no model states",
				name)
		}
	}
	all := make([]map[int]int, r.pp) // of each stage, how many experts its layers have
	for stage := range all {
		all[stage] = map[int]int{}
		for a := range r.experts {
			if a.mp/r.tp == stage {
				all[stage][a.layer] = max(all[stage][a.layer], a.expert+1)
			}
		}
		if err := r.checkExpertCounts(stage, all[stage]); err != nil {
			return err
		}
	}
	if len(r.experts) == 0 {
		return nil
	}
	r.single = r.tp > 1 && r.hasExpertsPerRank(all)
	var names []any
	old := false
	for stage, layers := range all {
		units, err := r.stageUnits(stage)
		if err != nil {
			return err
		}
		for _, layer := range slices.Sorted(maps.Keys(layers)) {
			prefix, err := r.readExpertLayer(stage, layer, layers[layer], units)
			if err != nil {
				return err
			}
			names, old = append(names, strings.TrimSuffix(prefix, expertsEnd)), old || layer < 0
		}
	}
	if !old {
		r.Values = append(r.Values, format.Value{Path: expertLayersKey, Data: names})
	}
	if r.tp > 1 {
		r.Values = append(r.Values, format.Value{Path: expertsCutKey, Data: !r.single})
	}
	return nil
}

// readExpertLayer adds the experts of a layer to the checkpoint, and returns the prefix of the
// names of their parameters. In a pipeline the layer belongs to one of the units of the stage.
func (r *reader) readExpertLayer(stage, layer, experts int, units map[string]bool) (prefix string,
	err error) {
	for expert := range experts {
		for mp := stage * r.tp; mp < (stage+1)*r.tp; mp++ {
			file := r.experts[expertAt{layer, expert, mp}]
			if file == "" && r.single {
				continue
			}
			if file == "" {
				return "", fmt.Errorf("there is no file of expert %d of layer %d of the "+
					"mixture, mp rank %d (%s); a rank did not finish its save, or it was not "+
					"copied", expert, layer, mp, expertFileName(layer, expert, mp))
			}
			names, err := r.readExpertFile(file, expert, mp)
			if err != nil {
				return "", err
			}
			for _, name := range names {
				begin := expertName.FindStringSubmatch(name)[1]
				if prefix == "" {
					prefix = begin
				}
				if r.pp > 1 && !units[stages.UnitOf(name)] {
					return "", fmt.Errorf("%s has %q, and stage %d has nothing else of that "+
						"layer (%s); the file is that of another stage", file, name, stage,
						r.models[rankID{stage * r.tp, 0}])
				}
				if begin != prefix && layer >= 0 {
					return "", fmt.Errorf("%s has %q, and other experts of layer %d of the "+
						"mixture have names that begin with %q; the file is that of another layer",
						file, name, layer, prefix)
				}
			}
		}
	}
	return prefix, nil
}

// hasExpertsPerRank reports whether each expert is the file of one tensor parallel rank: without
// tensor parallelism of experts DeepSpeed counts these ranks as ranks that share experts. stages
// has the number of experts of each layer, by stage.
func (r *reader) hasExpertsPerRank(stages []map[int]int) bool {
	for stage, layers := range stages {
		for layer, experts := range layers {
			for expert := range experts {
				files := 0
				for tp := range r.tp {
					if r.experts[expertAt{layer, expert, stage*r.tp + tp}] != "" {
						files++
					}
				}
				if files != 1 {
					return false
				}
			}
		}
	}
	return true
}

// checkExpertCounts fails when the layers of a stage have other numbers of experts than its model
// states say.
func (r *reader) checkExpertCounts(stage int, layers map[int]int) error {
	name := r.models[rankID{stage * r.tp, 0}]
	if name == "" {
		return nil // who reads it says so
	}
	first, err := r.openFile(name)
	if err != nil {
		return err
	}
	said, err := pickle.Get[*pickle.List](first.Root, expertCountsKey)
	if _, old := layers[-1]; err != nil || old {
		return nil // older versions do not say
	}
	for layer, n := range said.Items {
		if n, ok := n.(int64); ok && int64(layers[layer]) != n {
			return fmt.Errorf("%s says that layer %d of the mixture has %d experts, and there "+
				"are the files of %d; a rank did not finish its save, or a file was not copied",
				first.Name, layer, n, layers[layer])
		}
	}
	if len(layers) != len(said.Items) {
		return fmt.Errorf(
			"%s says that there are %d layers of experts, and there are the files of %d",
			first.Name, len(said.Items), len(layers))
	}
	return nil
}

// readExpertFile adds the tensors in the file of an expert to the checkpoint, and returns their
// names.
func (r *reader) readExpertFile(file string, expert, mp int) (names []string, err error) {
	f, err := r.openFile(file)
	if err != nil {
		return nil, err
	}
	part := format.Checkpoint{}
	if err := f.Flatten(&part, "", f.Root); err != nil {
		return nil, err
	}
	for _, t := range part.Tensors {
		m := expertName.FindStringSubmatch(t.Name)
		if m == nil && autoExpert.MatchString(
			strings.TrimSuffix(t.Name, "."+strconv.Itoa(expert))) {
			return nil, autoEPError(f.Name)
		}
		if m == nil || m[2] != strconv.Itoa(expert) {
			return nil, fmt.Errorf("%s has %q, which is no parameter of expert %d by "+
				"DeepSpeed's own layer (deepspeed_moe); convert the checkpoint with "+
				"ds_to_universal", f.Name, t.Name, expert)
		}
		names = append(names, t.Name)
		r.numbers[m[1]] = max(r.numbers[m[1]], expert+1)
		t.Name, t.Coords = "module."+t.Name, r.expertCoords(mp)
		r.Tensors = append(r.Tensors, t)
	}
	return names, nil
}

// expertCoords returns the coordinates of a model parallel rank's part of an expert.
func (r *reader) expertCoords(mp int) format.Coords {
	if r.single {
		return nil
	}
	return r.rankCoords(mp)
}

// addNumberedExpertState adds the state of experts that an optimizer without ZeRO keeps, by number,
// to the checkpoint: each expert parallel rank has its own.
func (r *reader) addNumberedExpertState() error {
	degree := 0
	for a := range r.expp {
		degree = max(degree, a.expert+1)
	}
	for e := range degree {
		for mp := range r.mp {
			name := r.expp[expertAt{-1, e, mp}]
			if name == "" && r.single {
				continue
			}
			if name == "" {
				return fmt.Errorf("there is no file expp_rank_%d_mp_rank_%02d_optim_states.pt; "+
					"a rank did not finish its save, or it was not copied", e, mp)
			}
			f, err := r.openFile(name)
			if err != nil {
				return err
			}
			state, err := pickle.Get[*pickle.Dict](f.Root, "optimizer")
			if err != nil {
				continue // ZeRO has it elsewhere
			}
			part := format.Checkpoint{}
			if err := f.Flatten(&part, "optimizer", state); err != nil {
				return err
			}
			for _, t := range part.Tensors {
				t.Coords, t.WhyPart = append(format.Coords{{Axis: "ep", Index: e, Of: degree}},
					r.stageCoords(mp)...), whyUnnamed
				r.Tensors = append(r.Tensors, t)
			}
			r.expertOptimizers = true
			if e == 0 && mp == 0 {
				r.Values = append(r.Values, part.Values...)
			}
		}
	}
	return nil
}
