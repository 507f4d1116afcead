package deepspeed

// Globals are what the files of DeepSpeed mention.
var Globals = globals
