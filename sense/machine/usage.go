package machine

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/shoal-ml/shoal/sense/predict"
)

// Usage is how busy the machine of a host was for a while. Parts are of what the machine has, from
// 0 to 1. What is not known is below 0. In JSON it is an object with what is known.
type Usage struct {
	CPU   float64 // part of the time of all processors in which they were busy
	Own   float64 // part of it that workers, their children and the agent used
	Steal float64 // part of it that other virtual machines had

	Memory float64 // part of the memory that is in use
	Disk   float64 // part of the time in which the busiest disk had work
	NIC    float64 // part of what the busiest network device carries

	// Pressure is the part of the time in which some work waited for processors, memory, or disks.
	Pressure [Pressures]float64

	// Bytes a second, of all network devices and of all disks.
	Received, Sent, Read, Written float64
}

// names are those of the fields in JSON, in the order of Usage.fields.
var names = [...]string{"cpu", "own", "steal", "memory", "disk", "nic", "cpu_pressure",
	"memory_pressure", "disk_pressure", "received", "sent", "read", "written"}

// MarshalJSON implements json.Marshaler. A number that is not finite is left out, as what is not
// known is.
func (u Usage) MarshalJSON() ([]byte, error) {
	known := map[string]float64{} // which is written by its sorted keys
	for i, x := range u.fields() {
		if *x >= 0 && !math.IsInf(*x, 1) {
			known[names[i]] = *x
		}
	}
	return json.Marshal(known)
}

// UnmarshalJSON implements json.Unmarshaler. Other keys are of a newer version, and ignored.
func (u *Usage) UnmarshalJSON(text []byte) error {
	var known map[string]float64
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	*u = Unknown()
	for i, x := range u.fields() {
		if value, is := known[names[i]]; is {
			*x = value
		}
	}
	return nil
}

// highest is above what any machine moves, in bytes a second.
const highest = 1e15

// Unknown returns the usage of a machine of which nothing is known.
func Unknown() Usage {
	return Usage{-1, -1, -1, -1, -1, -1, [Pressures]float64{-1, -1, -1}, -1, -1, -1, -1}
}

// Between returns the usage from one reading to a later one, which are so many seconds apart. All
// of it is not known where seconds is not above 0.
func Between(from, to Reading, seconds float64) Usage {
	u := Unknown()
	if !(seconds > 0) || math.IsInf(seconds, 1) {
		return u
	}
	if all := to.all - from.all; from.busy >= 0 && to.busy >= 0 && all > 0 {
		u.CPU, u.Steal = fractionOf(to.busy-from.busy, all), fractionOf(to.stolen-from.stolen, all)
	}
	if to.processors > 0 && len(to.processes) > 0 {
		own := 0.0
		for _, p := range to.processes { // one that is new has used all of its time meanwhile
			before, _ := find(from.processes, func(p process) string { return p.name }, p.name)
			own += max(0, p.seconds-before.seconds)
		}
		u.Own = fractionOf(own, seconds*float64(to.processors))
		if u.CPU >= 0 {
			u.Own = min(u.Own, u.CPU)
		}
	}
	if to.room > 0 {
		u.Memory = fractionOf(to.memory, to.room)
	}
	for i := range u.Pressure {
		if from.pressure[i] >= 0 && to.pressure[i] >= 0 {
			u.Pressure[i] = fractionOf(to.pressure[i]-from.pressure[i], seconds)
		}
	}
	u.addDevices(from, to, seconds)
	u.addDisks(from, to, seconds)
	for _, rate := range []*float64{&u.Received, &u.Sent, &u.Read, &u.Written} {
		if *rate >= highest { // a counter of the kernel jumped
			*rate = -1
		}
	}
	return u
}

// addDevices takes in the network devices.
func (u *Usage) addDevices(from, to Reading, seconds float64) {
	if !from.nets || !to.nets {
		return
	}
	u.Received, u.Sent = 0, 0
	for _, x := range to.devices {
		before, is := find(from.devices, func(d device) string { return d.name }, x.name)
		if !is {
			continue
		}
		received := max(0, x.received-before.received) / seconds
		sent := max(0, x.sent-before.sent) / seconds
		u.Received += received
		u.Sent += sent
		if x.speed > 0 {
			u.NIC = max(u.NIC, fractionOf(max(received, sent), x.speed))
		}
	}
}

// addDisks takes in the disks.
func (u *Usage) addDisks(from, to Reading, seconds float64) {
	if !from.stores || !to.stores {
		return
	}
	u.Read, u.Written = 0, 0
	for _, x := range to.disks {
		before, is := find(from.disks, func(d disk) string { return d.name }, x.name)
		if is {
			u.Read += max(0, x.read-before.read) / seconds
			u.Written += max(0, x.written-before.written) / seconds
			u.Disk = max(u.Disk, fractionOf(x.busy-before.busy, seconds))
		}
	}
}

// fractionOf returns which part of a whole x is, from 0 to 1.
func fractionOf(x, whole float64) float64 { return min(max(0, x/whole), 1) }

// fields returns pointers to all numbers of a usage.
func (u *Usage) fields() [len(names)]*float64 {
	return [...]*float64{&u.CPU, &u.Own, &u.Steal, &u.Memory, &u.Disk, &u.NIC, &u.Pressure[0],
		&u.Pressure[1], &u.Pressure[2], &u.Received, &u.Sent, &u.Read, &u.Written}
}

// round rounds all numbers to four digits, which are enough, and shorter in messages and files.
func (u *Usage) round() {
	for _, x := range u.fields() {
		*x, _ = strconv.ParseFloat(strconv.FormatFloat(*x, 'g', 4, 64), 64)
	}
}

// Valid reports whether a usage that another host has told can be.
func (u Usage) Valid() bool {
	for i, x := range u.fields() {
		if !(*x >= -1 && (*x <= 1 || i > 8 && *x < highest)) {
			return false
		}
	}
	return true
}

// resourceUse returns how much of each resource is in use that can be a bottleneck.
func (u Usage) resourceUse() predict.Use {
	known := func(x float64) float64 {
		if x < 0 {
			return math.NaN()
		}
		return x
	}
	return predict.Use{predict.NIC: known(u.NIC), predict.Memory: known(u.Memory),
		predict.Disk: known(u.Disk), predict.CPU: known(u.CPU)}
}

// Describe says how busy a resource of the machine is, in words, such as "its processors are 97 %
// busy, 40 % of that by others"; "" if it is not known.
func (u Usage) Describe(of predict.Resource) string {
	percent := func(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }
	switch {
	case of == predict.CPU && u.CPU >= 0:
		text := "its processors are " + percent(u.CPU) + " busy"
		if u.CPU > 0 && u.Own >= 0 {
			text += ", " + percent((u.CPU-u.Own)/u.CPU) + " of that by others"
		}
		if u.Steal >= 0.05 {
			text += ", " + percent(u.Steal) + " of their time had other virtual machines"
		}
		return text
	case of == predict.Memory && u.Memory >= 0:
		text := percent(u.Memory) + " of its memory is in use"
		if u.Pressure[1] >= 0.05 {
			text += ", for which work waits " + percent(u.Pressure[1]) + " of the time"
		}
		return text
	case of == predict.Disk && u.Disk >= 0:
		text := "its disk is busy " + percent(u.Disk) + " of the time"
		if u.Pressure[2] >= 0.05 {
			text += ", and work waits for it " + percent(u.Pressure[2])
		}
		return text
	case of == predict.NIC && u.NIC >= 0:
		return "its network device carries " + percent(u.NIC) + " of what it can"
	}
	return ""
}

// Mean returns the means of the numbers of usages, as far as they are known, with four digits.
func Mean(list []Usage) Usage {
	sum := Unknown()
	for i, at := range sum.fields() {
		n := 0.0
		for j := range list {
			if x := *list[j].fields()[i]; x >= 0 {
				*at = max(*at, 0) + x
				n++
			}
		}
		if n > 0 {
			*at /= n
		}
	}
	sum.round()
	return sum
}
