module shmcast

go 1.24
